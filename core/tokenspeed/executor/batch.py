"""From a step plan to the model's inputs: persistent block tables, patched by what changed.

Owns one host block table per cache group. Knows no request beyond its slot, and no sampling.
Legend: R rows, T query tokens, M blocks per row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from tokenspeed.contracts.attention import AttentionBatch
from tokenspeed.contracts.model import ForwardContext
from tokenspeed.contracts.step import SENTINEL_BLOCK, TOKEN_FROM_DEVICE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tokenspeed.contracts.attention import AttentionBackend
    from tokenspeed.contracts.step import StepPlan
    from tokenspeed.kv import Arena


@dataclass(frozen=True, slots=True)
class StepInputs:
    """What the model's forward takes: (T,) int64 ids on the device, and their context."""

    token_ids: torch.Tensor
    context: ForwardContext


class StepBatcher:
    """Turns each plan into inputs.

    Args:
        arena: of the cache; its views are made once.
        attention: cache group name -> backend, in the order of the plan's group indices.
        vocab_size: token ids are clamped to [0, vocab_size).
    """

    def __init__(
        self,
        arena: Arena,
        attention: Mapping[str, AttentionBackend],
        *,
        max_running: int,
        max_context_tokens: int,
        block_tokens: int,
        vocab_size: int,
        device: torch.device,
    ) -> None:
        self._arena = arena
        self._views = arena.views()
        self._attention = tuple(attention.items())
        self._block_tokens = block_tokens
        self._max_token_id = vocab_size - 1
        self._device = device
        blocks_per_row = -(-max_context_tokens // block_tokens)
        self._tables = [
            np.full((max_running, blocks_per_row), SENTINEL_BLOCK, dtype=np.int32)
            for _ in self._attention
        ]

    def build(self, plan: StepPlan, last_tokens_S: torch.Tensor) -> StepInputs:
        """Apply the plan's changes to tables and arena, and return the step's inputs.

        Args:
            last_tokens_S: (max_running,) int64 device; last sampled token of each slot.
        """
        self._patch_tables(plan)
        for group, source, target, num_tokens in plan.copies.tolist():
            self._arena.copy_tokens(group, source, target, num_tokens)
        positions_T = torch.from_numpy(_positions(plan)).to(self._device)
        context = ForwardContext(
            positions_T=positions_T,
            kv=self._views,
            attention_metadata=self._plan_attention(plan, positions_T),
            output_index_R=plan.output_index,
            query_start=plan.query_start,
        )
        return StepInputs(self._token_ids(plan, last_tokens_S), context)

    def _patch_tables(self, plan: StepPlan) -> None:
        # A new owner's slot is cleared before its first entries are written.
        for _, slot in plan.admitted.tolist():
            for table in self._tables:
                table[slot] = SENTINEL_BLOCK
        updates = plan.block_updates
        if len(updates) == 0:
            return
        for group, table in enumerate(self._tables):
            slots, indices, blocks = updates[updates[:, 1] == group][:, (0, 2, 3)].T
            table[slots, indices] = blocks

    def _plan_attention(self, plan: StepPlan, positions_T: torch.Tensor) -> Mapping[str, object]:
        longest_tokens = int((plan.context_tokens + np.diff(plan.query_start)).max())
        num_blocks = -(-longest_tokens // self._block_tokens)
        # Copies: tensors over the plan's read-only arrays would warn, and outlive the plan.
        query_start, context_tokens = plan.query_start.copy(), plan.context_tokens.copy()
        metadata = {}
        for (name, backend), table in zip(self._attention, self._tables, strict=True):
            batch = AttentionBatch(
                query_start=query_start,
                context_tokens=context_tokens,
                num_decode_rows=plan.num_decode_rows,
                block_tables=table[plan.slots, :num_blocks],
                block_tokens=self._block_tokens,
                positions_T=positions_T,
            )
            metadata[name] = backend.plan(batch)
        return metadata

    def _token_ids(self, plan: StepPlan, last_tokens_S: torch.Tensor) -> torch.Tensor:
        """Return (T,) int64 ids; tokens that are still on the device never leave it."""
        on_device = np.flatnonzero(plan.token_ids == TOKEN_FROM_DEVICE)
        clamped = np.clip(plan.token_ids, 0, self._max_token_id).astype(np.int64)
        token_ids_T = torch.from_numpy(clamped).to(self._device)
        if len(on_device):
            rows = np.searchsorted(plan.query_start, on_device, side="right") - 1
            slots = torch.from_numpy(plan.slots[rows].astype(np.int64)).to(self._device)
            places = torch.from_numpy(on_device).to(self._device)
            token_ids_T[places] = last_tokens_S[slots]
        return token_ids_T


def _positions(plan: StepPlan) -> NDArray[np.int64]:
    """Return (T,) position of each query token in its sequence."""
    context_tokens = plan.context_tokens.astype(np.int64)
    if plan.num_decode_rows == plan.num_rows == plan.num_tokens:
        return context_tokens
    starts = plan.query_start[:-1]
    shift = np.repeat(context_tokens - starts, np.diff(plan.query_start))
    return np.arange(plan.num_tokens, dtype=np.int64) + shift
