"""How operators are declared: a decorator turns a plain definition into an `Operator`.

The body of a definition is its formula in plain torch, written for clarity: evaluated in float64
it is what kernels are compared with. Nothing in a step calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.kernel import Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from tokenspeed.contracts.kernel import Case, Domain

    Cases = Callable[[Domain], Iterator[Case]]

FLOAT_TOLERANCE: Mapping[str, tuple[float, float]] = {
    "float32": (1e-5, 1e-5),
    "bfloat16": (2e-2, 2e-2),
    "float16": (3e-3, 3e-3),
}
"""dtype name -> (relative, absolute) error allowed against the float64 definition."""

EXACT: Mapping[str, tuple[float, float]] = dict.fromkeys(FLOAT_TOLERANCE, (0.0, 0.0))
"""Of operators that move numbers and compute none."""


def operator(
    name: str,
    *,
    cases: Cases,
    tolerance: Mapping[str, tuple[float, float]] = FLOAT_TOLERANCE,
    slot: str = "operator",
    result_dtypes: tuple[str, ...] = (),
    overwrites: tuple[str, ...] = (),
    tokens: tuple[str, ...] = (),
    placement: str = "",
) -> Callable[[Callable[..., Any]], Operator]:
    """Declare the decorated definition as operator `name`; see `Operator` for the rest."""

    def declare(definition: Callable[..., Any]) -> Operator:
        return Operator(
            name,
            definition,
            tolerance,
            cases,
            slot,
            result_dtypes,
            overwrites,
            tokens,
            placement,
        )

    return declare
