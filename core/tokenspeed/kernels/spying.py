"""Watches what a model calls, to time the alternatives on the same arguments. Used while tuning.

A spy stands where a kernel would: it calls it, and keeps the arguments of the first call of each
shape in each phase. A kernel that prepares another callable (packed products) is watched there.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.errors import plugin_code
from tokenspeed.kernels.evidence import request_key
from tokenspeed.kernels.registry import Binder, load_kernel
from tokenspeed.kernels.rules import AUTO

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokenspeed.contracts.binding import Decision, OfferSource, RegisteredOffer
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
    """A Binder whose kernels are watched; `requests` has the decision of each request.

    A kernel that fails gives its place to the next best: what it raised is told when it is timed.
    """

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

    def _choose(
        self, operator: Operator, traits: Mapping[str, object]
    ) -> tuple[Decision, Callable[..., Any]]:
        decision = self.decide(operator, traits)
        request = request_key(operator.name, {**self._base_traits, **traits})
        self.requests.setdefault(request, decision)
        by_pin = {item.pin: item for item in self._source.kernel_offers(operator.name)}
        best_first = [
            by_pin[item["offer"]]
            for item in decision.record["candidates"]
            if not item["clauses"] and (item["verdict"] == "won" or not _is_pinned(decision))
        ]
        return decision, _Spied(self._watch, request, operator.name, best_first)


def _is_pinned(decision: Decision) -> bool:
    return bool(decision.record["pin"] != AUTO)


class _Spied:
    """Stands where a kernel would, or what a kernel prepared.

    Args:
        offers: best first; those that failed are gone, from all that share the list.
        prepared: arguments of the call that prepared it; None: it is the kernel itself.
    """

    def __init__(
        self,
        watch: Watch,
        request: str,
        name: str,
        offers: list[RegisteredOffer[Any]],
        prepared: Arguments | None = None,
    ) -> None:
        self._watch, self._request, self._name = watch, request, name
        self._offers, self._prepared = offers, prepared
        self._functions: dict[str, Callable[..., Any]] = {}

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._watch.note(self._request, self._name, (args, kwargs), self._prepared)
        while True:
            offer = self._offers[0]
            try:
                with plugin_code():
                    result = self._function(offer)(*args, **kwargs)
                break
            except Exception:
                if len(self._offers) == 1:
                    raise
                if offer is self._offers[0]:
                    del self._offers[0]
        if callable(result) and not hasattr(result, "shape"):
            prepared = _Spied(self._watch, self._request, self._name, self._offers, (args, kwargs))
            prepared._functions[offer.pin] = result
            return prepared
        return result

    def _function(self, offer: RegisteredOffer[Any]) -> Callable[..., Any]:
        """Load a kernel, and let it prepare, once."""
        if offer.pin not in self._functions:
            kernel = load_kernel(offer)
            if self._prepared is not None:
                args, kwargs = self._prepared
                kernel = kernel(*args, **kwargs)
            self._functions[offer.pin] = kernel
        return self._functions[offer.pin]


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
