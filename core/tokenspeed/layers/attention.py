"""Attention over the paged cache: stores the step's keys and values, then attends.

The backend was chosen per cache group; its step metadata arrives in the ForwardContext.
Legend: T tokens, N query heads, K kv heads, H head dim.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from tokenspeed.contracts.attention import KVView
from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.layers.weights import WeightSlot

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch

    from tokenspeed.contracts.model import ForwardContext, ModelContext
    from tokenspeed.contracts.weights import LinearWeight


PLACEMENT = "Q N H!, T K H!, T K V!, N -> Q N V!; K<N, T<Q"
"""Of queries, keys and values of the step's tokens, and of sinks."""


class PagedAttention:
    """One layer's attention: requests are cut over ranks, their heads, and the queries of a step.

    Args:
        group: cache group of the layer; its backend knows the window.
        num_sinks: sink logits, one a query head; 0: none.
        scale: multiplies q k; None: 1 / sqrt(head_dim).
        softcap: scores s become softcap tanh(s / softcap); 0: none. The group declares the same.
    """

    spread: ClassVar[Mapping[str, ParallelGroup]] = {
        "T": ParallelGroup.ATTN_DP,
        "Q": ParallelGroup.ATTN_CP,
        "K": ParallelGroup.ATTN_TP,
        "N": ParallelGroup.ATTN_TP,
    }

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
        self._run: Callable[..., torch.Tensor] = self._write_and_attend
        if context.recorder is not None:
            sinks = ((num_sinks,),)
            self._run = context.recorder.module(
                self, PLACEMENT, weights=(sinks,) if num_sinks else (), spread=self.spread
            )
        if context.shards is not None and not context.shards.holds_layer(layer):
            return
        backend = context.attention[group]
        self._write = backend.write
        scale = head_dim**-0.5 if scale is None else scale
        self._attend: Callable[..., torch.Tensor] = partial(backend.attend, scale=scale)
        if softcap:
            self._attend = partial(self._attend, softcap=softcap)

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slot of `name`.sinks where the layer has sinks."""
        if self.num_sinks:
            slot = WeightSlot((self.num_sinks,), self._accept_sinks, "N", self.spread)
            yield f"{name}.sinks", slot

    def __call__(
        self,
        q_TNH: torch.Tensor,
        k_TKH: torch.Tensor,
        v_TKH: torch.Tensor,
        step: ForwardContext,
    ) -> torch.Tensor:
        """Return (T, N, H)."""
        return self._run(q_TNH, k_TKH, v_TKH, step)

    def _write_and_attend(
        self,
        q_TNH: torch.Tensor,
        k_TKH: torch.Tensor,
        v_TKH: torch.Tensor,
        step: ForwardContext,
    ) -> torch.Tensor:
        kv = step.kv[self.layer]
        assert isinstance(kv, KVView), "the layer's cache group has no keys and values"
        metadata = step.attention_metadata[self.group]
        self._write(k_TKH, v_TKH, kv, metadata)
        return self._attend(q_TNH, kv, step.query_metadata.get(self.group, metadata))

    def _accept_sinks(self, weight: LinearWeight) -> None:
        assert weight.plain is not None, "vectors are never packed"
        self._attend = partial(self._attend, sinks_N=weight.plain.to(self._device))
