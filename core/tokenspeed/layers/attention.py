"""Attention over the paged cache: stores the step's keys and values, then attends.

The backend was chosen per cache group; its step metadata arrives in the ForwardContext.
Legend: T tokens, N query heads, K kv heads, H head dim.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from tokenspeed.contracts.attention import KVView
from tokenspeed.contracts.placement import ParallelGroup, Replicate, Shard
from tokenspeed.layers.placements import LayerPlacement
from tokenspeed.layers.weights import WeightSlot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from tokenspeed.contracts.model import ForwardContext, ModelContext
    from tokenspeed.contracts.weights import LinearWeight


class PagedAttention:
    """One layer's attention; heads are spread over the attention group.

    Args:
        group: cache group of the layer; its backend knows the window.
        num_sinks: sink logits, one a query head; 0: none.
        scale: multiplies q k; None: 1 / sqrt(head_dim).
        softcap: scores s become softcap tanh(s / softcap); 0: none. The group declares the same.
    """

    placement = LayerPlacement(
        Shard(ParallelGroup.ATTN_TP, 1), Replicate(), Shard(ParallelGroup.ATTN_TP, 1)
    )

    def __init__(
        self,
        context: ModelContext,
        *,
        layer: int,
        group: str,
        head_dim: int,
        num_sinks: int = 0,
        scale: float | None = None,
        softcap: float = 0.0,
    ) -> None:
        self.layer = layer
        self.group = group
        self.num_sinks = num_sinks
        self._device = context.device
        backend = context.attention[group]
        self._write = backend.write
        scale = head_dim**-0.5 if scale is None else scale
        self._attend: Callable[..., torch.Tensor] = partial(backend.attend, scale=scale)
        if softcap:
            self._attend = partial(self._attend, softcap=softcap)

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slot of `name`.sinks where the layer has sinks."""
        if self.num_sinks:
            yield f"{name}.sinks", WeightSlot((self.num_sinks,), self._accept_sinks)

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
        return self._attend(q_TNH, kv, metadata)

    def _accept_sinks(self, weight: LinearWeight) -> None:
        assert weight.plain is not None, "vectors are never packed"
        self._attend = partial(self._attend, sinks_N=weight.plain.to(self._device))
