"""Root-mean-square normalisation: alone, after the residual sum, or before a gate."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar

from tokenspeed.layers.placements import Spread, bind_held, held
from tokenspeed.layers.weights import WeightSlot
from tokenspeed.ops import norm

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from tokenspeed.contracts.model import ModelContext
    from tokenspeed.contracts.weights import LinearWeight


class RMSNorm:
    """Normalises the last dimension; takes (T, D) or, for query and key heads, (T, N, H).

    Args:
        centred: the checkpoint stores the weight less one.
    """

    spread: ClassVar[Spread] = {}

    def __init__(
        self, context: ModelContext, features: int, *, eps: float, centred: bool = False
    ) -> None:
        self.features = features
        self.eps = eps
        self._device = context.device
        alone = norm.centred_rms_norm if centred else norm.rms_norm
        added = norm.add_centred_rms_norm if centred else norm.add_rms_norm
        bind = partial(bind_held, context, self, weights=(((features,),),))
        self._normalize: Callable[..., torch.Tensor] = bind(alone)
        self._add_normalize: Callable[..., tuple[torch.Tensor, torch.Tensor]] = bind(
            added, method="add"
        )
        self._weight: torch.Tensor = held(context)

    @property
    def weight(self) -> torch.Tensor:
        """Return (D,), what the normalised activations are multiplied with, once it is loaded."""
        return self._weight

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slot of `name`.weight."""
        yield f"{name}.weight", WeightSlot((self.features,), self._accept)

    def _accept(self, weight: LinearWeight) -> None:
        assert weight.plain is not None, "vectors are never packed"
        self._weight = weight.plain.to(self._device)

    def __call__(self, x_TD: torch.Tensor) -> torch.Tensor:
        """Return the normalised activations."""
        return self._normalize(x_TD, self._weight, eps=self.eps)

    def add(
        self, x_TD: torch.Tensor, residual_TD: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (normalised sum, sum) of `x_TD` and the residual stream."""
        return self._add_normalize(x_TD, residual_TD, self._weight, eps=self.eps)


class GatedRMSNorm:
    """Normalises the last dimension, then gates: norm(x) w silu(gate)."""

    spread: ClassVar[Spread] = {}

    def __init__(self, context: ModelContext, features: int, *, eps: float) -> None:
        self.features = features
        self.eps = eps
        self._device = context.device
        self._normalize: Callable[..., torch.Tensor] = bind_held(
            context, self, norm.gated_rms_norm, weights=(((features,),),)
        )
        self._weight: torch.Tensor = held(context)

    def weight_slots(self, name: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slot of `name`.weight."""
        yield f"{name}.weight", WeightSlot((self.features,), self._accept)

    def __call__(self, x_TD: torch.Tensor, gate_TD: torch.Tensor) -> torch.Tensor:
        """Return the gated activations."""
        return self._normalize(x_TD, gate_TD, self._weight, eps=self.eps)

    def _accept(self, weight: LinearWeight) -> None:
        assert weight.plain is not None, "vectors are never packed"
        self._weight = weight.plain.to(self._device)
