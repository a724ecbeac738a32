"""Paged attention in plain torch: each row gathers its blocks and makes one attention call.

Every row is computed on its own keys, cut to exactly what it sees, so that neither another row nor
a stale or NaN cell of a block can change its result.
Legend: T query tokens, N query heads, K kv heads, G = N / K, H head dim, V value dim.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tokenspeed_reference.attention_decode import (
    DecodePlan,
    attend_decode,
    plan_decode,
    write_decode,
)
from tokenspeed_reference.attention_plan import plan_chunks, written_cells
from tokenspeed_reference.attention_prefill import Chunk, Scoring, prefill
from tokenspeed_sdk import AttentionBatch, DecodeRows, KVView


@dataclass(frozen=True, slots=True)
class Plan:
    """One step, shared by all layers.

    Args:
        blocks_T, offsets_T: where each query token's key and value go.
    """

    blocks_T: torch.Tensor
    offsets_T: torch.Tensor
    chunks: tuple[Chunk, ...]


class PagedAttention:
    """AttentionBackend on any torch device; holds no state between steps."""

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
        v_head_dim: int = 0,
    ) -> None:
        self._value_dim = v_head_dim or head_dim
        self._heads = (num_kv_heads, num_heads // num_kv_heads)
        self._dtype = dtype
        self._device = device

    def plan(self, batch: AttentionBatch) -> Plan:
        """Turn block tables into write positions, blocks and masks."""
        blocks, offsets = written_cells(batch)
        return Plan(
            blocks_T=torch.from_numpy(blocks).to(self._device),
            offsets_T=torch.from_numpy(offsets).to(self._device),
            chunks=plan_chunks(batch, self._dtype, self._device),
        )

    def plan_decode(self, rows: DecodeRows) -> DecodePlan:
        """Plan rows that stay on the device."""
        return plan_decode(rows)

    def write(
        self, k_TKH: torch.Tensor, v_TKH: torch.Tensor, kv: KVView, metadata: Plan | DecodePlan
    ) -> None:
        """Store the step's keys and values; values that are a part of their keys are there then."""
        if isinstance(metadata, DecodePlan):
            write_decode(k_TKH, v_TKH, kv, metadata)
            return
        kv.k[metadata.blocks_T, :, metadata.offsets_T] = k_TKH
        if kv.v.data_ptr() != kv.k.data_ptr():
            kv.v[metadata.blocks_T, :, metadata.offsets_T] = v_TKH

    def attend(
        self,
        q_TNH: torch.Tensor,
        kv: KVView,
        metadata: Plan | DecodePlan,
        *,
        scale: float,
        sinks_N: torch.Tensor | None = None,
        softcap: float = 0.0,
    ) -> torch.Tensor:
        """Attend each row to its own keys."""
        sinks_KG = None if sinks_N is None else sinks_N.view(self._heads)
        scoring = Scoring(scale, sinks_KG, softcap)
        q_TKGH = q_TNH.view(-1, *self._heads, q_TNH.shape[-1])
        if isinstance(metadata, DecodePlan):
            return attend_decode(q_TKGH, kv, metadata, scoring).flatten(1, 2)
        out_TNV = q_TNH.new_empty(*q_TNH.shape[:2], self._value_dim)
        out_TKGV = out_TNV.view(-1, *self._heads, self._value_dim)
        for chunk in metadata.chunks:
            prefill(out_TKGV[chunk.query], q_TKGH[chunk.query], kv, chunk, scoring)
        return out_TNV
