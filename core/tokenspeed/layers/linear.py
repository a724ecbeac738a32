"""Matrix products with checkpoint weights, plain or packed, one or several tensors fused.

Legend: T tokens, I input features, O output features, N heads.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING

from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.layers.placements import bind_held, held
from tokenspeed.layers.weights import WeightSlot
from tokenspeed.ops import linear

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import torch

    from tokenspeed.contracts.model import ModelContext
    from tokenspeed.contracts.placement import ParallelGroup
    from tokenspeed.layers.placements import Spread, Units

    Multiply = Callable[[torch.Tensor], torch.Tensor]


class Linear:
    """y = x W^T + b, where W stacks one checkpoint tensor per part (q, k, v; gate, up).

    The kernel is bound when the last part arrives: parts of one packing become one product;
    parts of different packings are multiplied one after the other.

    Args:
        parts: output features of each part, in the order of the result's columns; several numbers
            where one tensor has segments that are cut each by itself.
        bias: every part has a bias.
        spread: over which groups O and I are cut.
        units: of I, and of each segment of O: what is never cut, such as heads.
    """

    def __init__(
        self,
        context: ModelContext,
        in_features: int,
        parts: Sequence[int | Sequence[int]],
        *,
        bias: bool = False,
        spread: Spread | None = None,
        units: Units | None = None,
    ) -> None:
        self.in_features = in_features
        self.parts = tuple((part,) if isinstance(part, int) else tuple(part) for part in parts)
        self.spread = spread or {}
        self.units = units or {}
        self._context = context
        self._weights: dict[int, LinearWeight] = {}
        self._biases: dict[int, torch.Tensor] | None = {} if bias else None
        self._multiply: Multiply
        if context.recorder is not None:
            columns = tuple(size for part in self.parts for size in part)
            weights = ((columns, (in_features,)), *([(columns,)] if bias else ()))
            self._multiply = context.recorder.module(
                self,
                linear.linear.placement,
                weights=weights,
                spread=self.spread,
                units=self.units,
            )

    def weight_slots(self, *names: str) -> Iterator[tuple[str, WeightSlot]]:
        """Yield the slots of `NAME`.weight (and .bias) for one module name per part."""
        first = 0
        for part, (name, sizes) in enumerate(zip(names, self.parts, strict=True)):
            units = dict(self.units)
            if "O" in units:
                units["O"] = units["O"][first : first + len(sizes)]
            first += len(sizes)
            yield f"{name}.weight", self._slot("O I", part, sizes, units)
            if self._biases is not None:
                yield f"{name}.bias", self._slot("O", part, sizes, units)

    def __call__(self, x_TI: torch.Tensor) -> torch.Tensor:
        """Return (T, sum of parts)."""
        return self._multiply(x_TI)

    def _slot(self, letters: str, part: int, sizes: Sequence[int], units: Units) -> WeightSlot:
        rows, is_bias = sum(sizes), letters == "O"
        return WeightSlot(
            (rows,) if is_bias else (rows, self.in_features),
            partial(self._accept_bias if is_bias else self._accept, part),
            letters,
            self.spread,
            parts={"O": sizes},
            units=units,
            added="I" if is_bias else "",
        )

    def _accept(self, part: int, weight: LinearWeight) -> None:
        self._weights[part] = weight
        self._bind_when_complete()

    def _accept_bias(self, part: int, weight: LinearWeight) -> None:
        assert weight.plain is not None, "vectors are never packed"
        assert self._biases is not None, "no slot of a bias was declared"
        self._biases[part] = weight.plain
        self._bind_when_complete()

    def _bind_when_complete(self) -> None:
        num_parts = len(self.parts)
        biases = self._biases
        if len(self._weights) < num_parts or (biases is not None and len(biases) < num_parts):
            return
        runs = groupby(range(num_parts), key=lambda part: self._weights[part].packing)
        products = [self._bind_run(list(run)) for _, run in runs]
        self._multiply = products[0] if len(products) == 1 else _side_by_side(products)
        self._weights.clear()  # fused copies replace the parts
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


class HeadsLinear:
    """y = W_n x: each head has its own matrix, whose rows come from a tensor of the owner's.

    Args:
        group: over whose ranks the heads are cut.
    """

    def __init__(
        self,
        context: ModelContext,
        heads: int,
        in_features: int,
        out_features: int,
        group: ParallelGroup,
    ) -> None:
        self.spread: Spread = {"N": group}
        self._device = context.device
        self._multiply: Callable[..., torch.Tensor] = bind_held(
            context,
            self,
            linear.heads_linear,
            weights=(((heads,), (out_features,), (in_features,)),),
            spread=self.spread,
        )
        self._weight_NOI: torch.Tensor = held(context)

    def __call__(self, x_TNI: torch.Tensor) -> torch.Tensor:
        """Return (T, N, O)."""
        return self._multiply(x_TNI, self._weight_NOI)

    def take(self, weight_NOI: torch.Tensor) -> None:
        """Keep the matrices of this rank's heads."""
        self._weight_NOI = weight_NOI.to(self._device).contiguous()


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
