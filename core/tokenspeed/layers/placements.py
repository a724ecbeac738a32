"""How a layer lies over the ranks: letters of its placement rule -> groups, as data.

Layers that call an operator with tensors of their own bind it here, so that a trace sees the call
of the layer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.placement import ParallelGroup

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.contracts.kernel import Operator
    from tokenspeed.contracts.model import ModelContext

Spread = Mapping[str, ParallelGroup]
"""Letter of a placement rule -> group over which it is cut; other letters are whole."""
Units = Mapping[str, Sequence[int]]
"""Letter -> how many equal units each of its segments has, such as heads; a unit is never cut."""


def column_parallel(group: ParallelGroup) -> Spread:
    """Return: each rank holds some output features of a product and gives those."""
    return {"O": group}


def row_parallel(group: ParallelGroup) -> Spread:
    """Return: each rank holds some input features of a product and gives a summand."""
    return {"I": group}


def bind_held(
    context: ModelContext,
    layer: object,
    operator: Operator,
    *,
    weights: Sequence[Sequence[Sequence[int]]],
    spread: Spread | None = None,
    units: Units | None = None,
    method: str = "",
    dtypes: Sequence[str] = (),
    **traits: object,
) -> Callable[..., Any]:
    """Bind an operator that `layer` calls with tensors it holds, last among those that may be cut.

    Args:
        weights, spread, units, method, dtypes: see `contracts.placement.Recorder`.
        traits: of the request for a kernel.
    """
    if context.recorder is None:
        return context.kernels.bind(operator, **traits)
    return context.recorder.module(
        layer,
        operator.placement,
        method=method,
        weights=weights,
        spread=spread,
        units=units,
        dtypes=dtypes or operator.result_dtypes,
        operator=operator,
    )


def held(context: ModelContext) -> Any:
    """Return what stands for a layer's tensors until they come; in a trace they never do."""
    return None if context.recorder is None else context.recorder.held
