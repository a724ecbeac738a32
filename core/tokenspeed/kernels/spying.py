"""Watches what a model calls, to time the alternatives on the same arguments. Used while tuning.

A spy stands where a kernel would: it calls it, and keeps the arguments of the first call of each
shape in each phase. A kernel that prepares another callable (packed products) is watched there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.kernels.evidence import request_key
from tokenspeed.kernels.registry import Binder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokenspeed.contracts.binding import Decision, OfferSource
    from tokenspeed.contracts.kernel import Operator
    from tokenspeed.kernels.rules import Rules

SMALL_BYTES = 1 << 23
"""Larger tensors are weights: they are kept as they are, smaller ones are copied."""

Arguments = tuple[tuple[Any, ...], dict[str, Any]]


@dataclass(slots=True)
class Sample:
    """Calls of one shape.

    Args:
        prepared: arguments of the call that made the callable; None: the kernel is called itself.
        calls: phase -> number of calls.
    """

    arguments: Arguments
    prepared: Arguments | None
    calls: dict[str, int]


class Watch:
    """All samples, by request and shape; `phase` says what kind of step runs."""

    def __init__(self) -> None:
        self.phase = ""
        self.samples: dict[str, dict[str, Sample]] = {}

    def note(
        self, request: str, name: str, arguments: Arguments, prepared: Arguments | None
    ) -> None:
        """Count a call; keeps the arguments of the first of its shape."""
        if not self.phase:
            return
        shape = f"{name}|{_shape((prepared, arguments))}"
        by_shape = self.samples.setdefault(request, {})
        if shape not in by_shape:
            by_shape[shape] = Sample(copied(arguments), prepared, {})
        calls = by_shape[shape].calls
        calls[self.phase] = calls.get(self.phase, 0) + 1


class SpyBinder(Binder):
    """A Binder whose kernels are watched; `requests` has the decision of each request."""

    def __init__(
        self,
        source: OfferSource,
        base_traits: Mapping[str, object],
        rules: Rules,
        watch: Watch,
    ) -> None:
        super().__init__(source, base_traits, rules)
        self._watch = watch
        self.requests: dict[str, Decision] = {}

    def bind(self, operator: Operator, **traits: object) -> Callable[..., Any]:
        """Return the chosen kernel behind a spy."""
        kernel = super().bind(operator, **traits)
        request = request_key(operator.name, {**self._base_traits, **traits})
        if request not in self.requests:
            self.requests[request] = self.decisions[-1]
        return _spied(kernel, self._watch, request, operator.name, None)


def _spied(
    function: Callable[..., Any],
    watch: Watch,
    request: str,
    name: str,
    prepared: Arguments | None,
) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        watch.note(request, name, (args, kwargs), prepared)
        result = function(*args, **kwargs)
        if callable(result) and not hasattr(result, "shape"):
            return _spied(result, watch, request, name, (args, kwargs))
        return result

    return call


def copied(value: Any) -> Any:
    """Copy small tensors inside arguments: kernels may overwrite them."""
    if hasattr(value, "clone"):
        return value.clone() if value.nbytes <= SMALL_BYTES else value
    if isinstance(value, tuple):
        return tuple(copied(item) for item in value)
    if isinstance(value, dict):
        return {name: copied(item) for name, item in value.items()}
    return value


def _shape(value: Any) -> str:
    """Name arguments by type and shape."""
    if isinstance(value, LinearWeight):
        return f"{value.packing or 'plain'}[{'x'.join(map(str, value.shape))}]"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"{str(value.dtype).removeprefix('torch.')}[{'x'.join(map(str, value.shape))}]"
    if isinstance(value, tuple | list):
        return " ".join(filter(None, map(_shape, value)))
    if isinstance(value, dict):
        return " ".join(f"{name}={_shape(item)}" for name, item in sorted(value.items()))
    if value is None:
        return ""
    return str(value) if isinstance(value, bool | int | float | str) else type(value).__name__


def weighed(calls: Mapping[str, int], weights: Mapping[str, float]) -> float:
    """Return how many calls count, over the phases."""
    return sum(count * weights[phase] for phase, count in calls.items())
