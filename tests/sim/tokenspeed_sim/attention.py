"""Attention over kernel pages: blocks are read as runs of pages, as a kernel of fixed tile would.

Legend: T query tokens, N query heads, H head dim, R rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from tokenspeed_reference.attention import PagedAttention, Plan

if TYPE_CHECKING:
    from tokenspeed_reference.attention_decode import DecodePlan
    from tokenspeed_sdk import AttentionBatch, KVView


class Attention(PagedAttention):
    """AttentionBackend that asks for pages; computes on them with the reference.

    Args:
        nan_every: every so many plans of one step the first row's result is NaN; 0: never.
    """

    def __init__(self, *, nan_every: int, **options: Any) -> None:
        super().__init__(**options)
        self._nan_every = nan_every
        self._num_plans = 0

    def plan(self, batch: AttentionBatch) -> Plan:
        """Plan on pages in place of blocks."""
        self._num_plans += 1
        if batch.page_tables is None:
            return super().plan(batch)
        return super().plan(
            replace(batch, block_tables=batch.page_tables, block_tokens=batch.page_tokens)
        )

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
        """Attend, and fail as planned."""
        out_TNH = super().attend(q_TNH, kv, metadata, scale=scale, sinks_N=sinks_N, softcap=softcap)
        fails = self._nan_every and self._num_plans % self._nan_every == 0
        if fails and isinstance(metadata, Plan):
            out_TNH[metadata.chunks[0].query] = torch.nan
        return out_TNH
