"""Operators and kernels: what is computed, and one way of computing it.

An `Operator` is the meaning (declared in `ops/`); a `KernelOffer` is an implementation that a
plugin registers; `KernelBinder.bind` chooses one at build time and returns a plain callable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Band(IntEnum):
    """How far a kernel is tuned; higher wins when nothing was measured."""

    REFERENCE = 0
    PORTABLE = 1
    PERFORMANT = 2
    SPECIALIZED = 3


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """The meaning of one computation.

    Args:
        name: dotted and unique, such as "norm.rms".
        signature: a function whose typed signature and docstring are the specification.
        tolerance: dtype name -> (relative, absolute) tolerance against a float64 evaluation.
        cases: yields (args, kwargs) samples over the domain, for conformance and tests.
    """

    name: str
    signature: Callable[..., Any]
    tolerance: Mapping[str, tuple[float, float]]
    cases: Callable[[int], Iterator[tuple[tuple[Any, ...], dict[str, Any]]]] | None = None


@dataclass(frozen=True, slots=True)
class KernelOffer:
    """One implementation of one operator.

    Args:
        operator: name of the operator.
        name: `<op>_<variant>_<arch>`, unique in the plugin.
        load: returns the callable; imports what it needs only then.
        band: how far it is tuned.
        requires: trait name -> allowed values (see `contracts/capability.py`); fail closed.
        graph_safe, deterministic: properties that selection may ask for.
        score: optional pure function of (request traits, objective) -> float, higher is better.
    """

    operator: str
    name: str
    load: Callable[[], Callable[..., Any]]
    band: Band = Band.REFERENCE
    requires: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    graph_safe: bool = False
    deterministic: bool = True
    score: Callable[[Mapping[str, object], str], float] | None = None


class KernelBinder(Protocol):
    """Chooses kernels while a model is being built; frozen afterwards."""

    def bind(self, operator: Operator, **traits: object) -> Callable[..., Any]:
        """Return the chosen implementation for a request with these traits.

        Raises:
            CapabilityError: no candidate passes; the text lists each with its failed clauses.
        """
        ...
