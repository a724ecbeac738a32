"""Attention over the paged cache: stores the step's keys and values, then attends.

The backend was chosen per cache group; its step metadata arrives in the ForwardContext.
Legend: T tokens, N query heads, K kv heads, H head dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.attention import KVView
from tokenspeed.contracts.placement import ParallelGroup, Replicate, Shard
from tokenspeed.layers.placements import LayerPlacement

if TYPE_CHECKING:
    import torch

    from tokenspeed.contracts.model import ForwardContext, ModelContext


class PagedAttention:
    """One layer's attention; heads are spread over the attention group."""

    placement = LayerPlacement(
        Shard(ParallelGroup.ATTN_TP, 1), Replicate(), Shard(ParallelGroup.ATTN_TP, 1)
    )

    def __init__(self, context: ModelContext, *, layer: int, group: str, head_dim: int) -> None:
        self.layer = layer
        self.group = group
        self.scale = head_dim**-0.5
        backend = context.attention[group]
        self._write = backend.write
        self._attend = backend.attend

    def __call__(
        self,
        q_TNH: torch.Tensor,
        k_TKH: torch.Tensor,
        v_TKH: torch.Tensor,
        step: ForwardContext,
    ) -> torch.Tensor:
        """Return (T, N, H)."""
        kv = step.kv[self.layer]
        assert isinstance(kv, KVView), "the layer's cache group has no keys and values"
        metadata = step.attention_metadata[self.group]
        self._write(k_TKH, v_TKH, kv, metadata)
        return self._attend(q_TNH, kv, metadata, scale=self.scale)
