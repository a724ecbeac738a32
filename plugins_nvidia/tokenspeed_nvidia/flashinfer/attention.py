"""AttentionBackend: FlashInfer attends the chunks of a step, the portable kernels all else.

Decode rows stay with the portable kernels: those read their description on the device, so that one
captured graph serves every step. FlashInfer would have to be planned by the host before each.
Legend: T query tokens, N query heads, K kv heads, H head dim.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from tokenspeed_nvidia.flashinfer.pages import pages_of_chunks
from tokenspeed_nvidia.flashinfer.planning import Plans
from tokenspeed_sdk.portable.attention.backend import PortablePagedAttention

if TYPE_CHECKING:
    from tokenspeed_nvidia.flashinfer.planning import Plan
    from tokenspeed_sdk import AttentionBatch, DecodeRows, KVView
    from tokenspeed_sdk.portable.attention.steps import Step


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One step's metadata.

    Args:
        step: for the portable kernels; without chunks.
        num_decodes: the step's first query tokens, which are decode rows.
        chunks: the query tokens behind them; None: there are none.
    """

    step: Step
    num_decodes: int
    chunks: Plan | None = None


class ChunksByFlashInfer:
    """Paged attention of keys and values on sm_90a; no window, no sinks, no softcap."""

    def __init__(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        block_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._portable = PortablePagedAttention(
            num_heads=num_heads,
            num_kv_heads=num_kv_heads,
            head_dim=head_dim,
            block_tokens=block_tokens,
            dtype=dtype,
            device=device,
        )
        self._plans = Plans(num_heads, num_kv_heads, head_dim, block_tokens, dtype, device)

    def plan(self, batch: AttentionBatch) -> PlannedStep:
        """Copy what the kernels read of the step to the device."""
        whole = self._portable.plan(batch)
        step = replace(whole, chunks=replace(whole.chunks, launches=()))
        pages = pages_of_chunks(batch)
        chunks = self._plans.plan(pages) if pages.num_tokens else None
        return PlannedStep(step, batch.num_decode_rows, chunks)

    def plan_decode(self, rows: DecodeRows) -> PlannedStep:
        """Describe rows that stay on the device; may be captured into a graph."""
        return PlannedStep(self._portable.plan_decode(rows), len(rows.lengths_R))

    def write(
        self, k_TKH: torch.Tensor, v_TKH: torch.Tensor, kv: KVView, metadata: PlannedStep
    ) -> None:
        """Store the step's keys and values."""
        self._portable.write(k_TKH, v_TKH, kv, metadata.step)

    def attend(
        self,
        q_TNH: torch.Tensor,
        kv: KVView,
        metadata: PlannedStep,
        *,
        scale: float,
        sinks_N: torch.Tensor | None = None,
        softcap: float = 0.0,
    ) -> torch.Tensor:
        """Attend decode rows, then chunks; see AttentionBackend.attend."""
        assert sinks_N is None, "not declared by the offer"
        assert not softcap, "not declared by the offer"
        if metadata.chunks is None:
            return self._portable.attend(q_TNH, kv, metadata.step, scale=scale)
        first = metadata.num_decodes
        out_TNH = torch.empty_like(q_TNH, memory_format=torch.contiguous_format)
        if first:
            out_TNH[:first] = self._portable.attend(q_TNH[:first], kv, metadata.step, scale=scale)
        own = slice(first, first + metadata.chunks.num_tokens)
        metadata.chunks.attend(out_TNH[own], q_TNH[own], kv, scale=scale)
        return out_TNH
