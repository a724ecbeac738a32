"""Operators and kernels: what is computed, and one way of computing it.

An `Operator` is the meaning (declared in `ops/`); a `KernelOffer` is an implementation that a
plugin registers; `KernelBinder.bind` chooses one at build time and returns a plain callable.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Protocol

from tokenspeed.contracts.capability import TRAITS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


class Band(IntEnum):
    """How far a kernel is tuned; higher wins when nothing was measured."""

    REFERENCE = 0
    PORTABLE = 1
    PERFORMANT = 2
    SPECIALIZED = 3


@dataclass(frozen=True, slots=True)
class Domain:
    """What cases are drawn from: what an implementation says that it takes.

    Args:
        dtype: torch's name of the dtype of activations and weights.
        traits: trait name -> values, as the `requires` of an offer; None: no limits.
        seed: of everything random.
    """

    dtype: str = "float32"
    traits: Mapping[str, tuple[object, ...]] | None = None
    seed: int = 0

    def values(self, trait: str, *samples: Any) -> tuple[Any, ...]:
        """Return the values of a trait that cases are drawn for.

        Args:
            samples: drawn where any value is taken.
        """
        if self.traits is None:
            return samples
        declared = self.traits.get(trait, ())
        if "*" in declared:
            return samples
        neutral = TRAITS[trait].neutral
        return tuple(dict.fromkeys([item for item in samples if item == neutral] + [*declared]))


@dataclass(frozen=True, slots=True)
class Case:
    """One sample of an operator's domain.

    Args:
        name: what is special about it, unique in the operator.
        args, options: of the call.
        traits: what a request for such shapes carries beside device and dtype.
        calls: the operator prepares a callable: the arguments of each call of it.
    """

    name: str
    args: tuple[Any, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    traits: Mapping[str, object] = field(default_factory=dict)
    calls: tuple[tuple[Any, ...], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """The meaning of one computation.

    Args:
        name: dotted and unique, such as "norm.rms".
        signature: a function whose typed signature and docstring are the specification.
        tolerance: dtype name -> (relative, absolute) tolerance against a float64 evaluation.
        cases: yields samples over a domain, for conformance and tests; edges included.
        slot: what implements it: "operator" (a kernel), or the slot of a backend that owns the
            call, such as "attention".
        result_dtypes: torch's name of the dtype of each floating result; "" or none: the case's.
        overwrites: arguments that an implementation may use as scratch.
        tokens: arguments whose first axis is the step's tokens. A token's result depends on its own
            part of them alone; where the operator takes `batch` or `rows`, on its row's.
        placement: how its tensors may lie over ranks, in the notation of `contracts/placement.py`;
            "": on every rank alike, whole.
    """

    name: str
    signature: Callable[..., Any]
    tolerance: Mapping[str, tuple[float, float]]
    cases: Callable[[Domain], Iterator[Case]] | None = None
    slot: str = "operator"
    result_dtypes: tuple[str, ...] = ()
    overwrites: tuple[str, ...] = ()
    tokens: tuple[str, ...] = ()
    placement: str = ""


@dataclass(frozen=True, slots=True)
class KernelOffer:
    """One implementation of one operator.

    Args:
        operator: name of the operator.
        name: `<op>_<variant>_<arch>`, unique in the plugin.
        load: returns the callable; imports what it needs only then.
        band: how far it is tuned.
        requires: trait name -> allowed values (see `contracts/capability.py`); fail closed.
        graph_safe: may be captured into a device graph, in steps of one token a row.
        deterministic: a row's result is the same in every batch, bit by bit; say False where a
            library chooses its algorithm by the number of rows, as matrix products do.
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
