"""How operators are declared: a decorator turns a plain definition into an `Operator`.

The body of a definition is its formula in plain torch, written for clarity: evaluated in float64
it is what kernels are compared with. Nothing in a step calls it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.kernel import Operator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    Cases = Callable[[int], Iterator[tuple[tuple[Any, ...], dict[str, Any]]]]

FLOAT_TOLERANCE: Mapping[str, tuple[float, float]] = {
    "float32": (1e-5, 1e-5),
    "bfloat16": (2e-2, 2e-2),
    "float16": (3e-3, 3e-3),
}
"""dtype name -> (relative, absolute) error allowed against the float64 definition."""


def operator(
    name: str,
    *,
    tolerance: Mapping[str, tuple[float, float]] = FLOAT_TOLERANCE,
    cases: Cases | None = None,
) -> Callable[[Callable[..., Any]], Operator]:
    """Declare the decorated definition as operator `name`."""

    def declare(definition: Callable[..., Any]) -> Operator:
        return Operator(name, definition, tolerance, cases)

    return declare
