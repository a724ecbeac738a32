"""Matrix products with checkpoint weights, plain or packed, one or several tensors fused.

Legend: T tokens, I input features, O output features.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.layers.weights import WeightSlot
from tokenspeed.ops import linear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from tokenspeed.contracts.model import ModelContext
    from tokenspeed.layers.placements import LayerPlacement

    Multiply = Callable[[torch.Tensor], torch.Tensor]


class Linear:
    """y = x W^T + b, where W stacks one checkpoint tensor per part (q, k, v; gate, up).

    The kernel is bound when the last part arrives: parts of one packing become one product;
    parts of different packings are multiplied one after the other.

    Args:
        parts: output features of each part, in the order of the result's columns.
        bias: every part has a bias.
    """

    def __init__(
        self,
        context: ModelContext,
        in_features: int,
        parts: tuple[int, ...],
        *,
        bias: bool = False,
        placement: LayerPlacement,
    ) -> None:
        self.in_features = in_features
        self.parts = parts
        self.placement = placement
        self._context = context
        self._weights: dict[int, LinearWeight] = {}
        self._biases: dict[int, torch.Tensor] | None = {} if bias else None
        self._multiply: Multiply

    def weight_slots(self, *names: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots of `NAME`.weight (and .bias) for one module name per part."""
        for part, (name, rows) in enumerate(zip(names, self.parts, strict=True)):
            yield (
                f"{name}.weight",
                WeightSlot((rows, self.in_features), self._acceptor(self._weights, part)),
            )
            if self._biases is not None:
                yield f"{name}.bias", WeightSlot((rows,), self._bias_acceptor(self._biases, part))

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Return (T, sum of parts)."""
        return self._multiply(x_TI)

    def _acceptor(
        self, weights: dict[int, LinearWeight], part: int
    ) -> Callable[[LinearWeight], None]:
        def accept(weight: LinearWeight) -> None:
            weights[part] = weight
            self._bind_when_complete()

        return accept

    def _bias_acceptor(
        self, biases: dict[int, torch.Tensor], part: int
    ) -> Callable[[LinearWeight], None]:
        def accept(weight: LinearWeight) -> None:
            assert weight.plain is not None, "vectors are never packed"
            biases[part] = weight.plain
            self._bind_when_complete()

        return accept

    def _bind_when_complete(self) -> None:
        num_parts = len(self.parts)
        biases = self._biases
        if len(self._weights) < num_parts or (biases is not None and len(biases) < num_parts):
            return
        runs = groupby(range(num_parts), key=lambda part: self._weights[part].packing)
        products = [self._bind_run(list(run)) for _, run in runs]
        self._multiply = products[0] if len(products) == 1 else _side_by_side(products)
        # Fused copies replace the parts; the acceptors share these dicts, so empty them in place.
        self._weights.clear()
        if biases is not None:
            biases.clear()

    def _bind_run(self, run: list[int]) -> Multiply:
        weight = _stack([self._weights[part] for part in run])
        bias: torch.Tensor | None = None
        if self._biases is not None:
            bias = _concat([self._biases[part] for part in run]).to(self._context.device)
        if weight.plain is None:
            factory: Callable[..., Multiply] = self._context.kernels.bind(
                linear.packed_linear, packing=weight.packing
            )
            return factory(weight, bias)
        dense: Callable[..., torch.Tensor] = self._context.kernels.bind(linear.linear)
        matrix = weight.plain.to(self._context.device)
        return lambda x_TI: dense(x_TI, matrix, bias)


def _concat(tensors: list[torch.Tensor]) -> torch.Tensor:
    import torch

    return tensors[0] if len(tensors) == 1 else torch.cat(tensors)


def _stack(weights: list[LinearWeight]) -> LinearWeight:
    """Stack weights of one packing on their rows."""
    first = weights[0]
    if len(weights) == 1:
        return first
    shape = (sum(weight.shape[0] for weight in weights), first.shape[1])
    if first.plain is not None:
        return LinearWeight(shape, _concat([w.plain for w in weights if w.plain is not None]))
    packed = {name: _concat([w.packed[name] for w in weights]) for name in first.packed}
    return LinearWeight(shape, None, first.packing, packed)


def _side_by_side(products: list[Multiply]) -> Multiply:
    import torch

    return lambda x_TI: torch.cat([multiply(x_TI) for multiply in products], dim=-1)
