"""Binds operators to kernels while a model is built: select once, load once, plain callables."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Protocol

from tokenspeed.contracts.binding import Decision, OfferSource, RegisteredOffer
from tokenspeed.contracts.kernel import KernelOffer, Operator
from tokenspeed.errors import PluginError, plugin_code, told
from tokenspeed.kernels.rules import AUTO, Rules
from tokenspeed.kernels.selection import select

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Evidence(Protocol):
    """Times measured on this device; `tuning.py` has the real one."""

    def seconds(self, slot: str, traits: Mapping[str, object]) -> Mapping[str, float]:
        """Return PLUGIN/NAME -> seconds for a request; empty: nothing was measured."""
        ...

    def failures(self, slot: str, traits: Mapping[str, object]) -> Mapping[str, str]:
        """Return PLUGIN/NAME -> why it could not be measured for a request."""
        ...


class KernelRegistry:
    """The kernels that the loaded plugins offer."""

    def __init__(self, source: OfferSource) -> None:
        self._source = source

    def binder(
        self,
        base_traits: Mapping[str, object],
        *,
        rules: Rules | None = None,
        evidence: Evidence | None = None,
        **options: Any,
    ) -> Binder:
        """Return a binder for one model on one device.

        Args:
            base_traits: carried by every request, such as {"device": "cpu", "dtype": "float32"}.
            rules: how to choose; pins are by operator name. None: Rules(**options).
            evidence: measured times.
        """
        return Binder(self._source, base_traits, rules or Rules(**options), evidence)


class Binder:
    """A KernelBinder (`contracts/kernel.py`) that remembers what it chose and why."""

    def __init__(
        self,
        source: OfferSource,
        base_traits: Mapping[str, object],
        rules: Rules,
        evidence: Evidence | None = None,
    ) -> None:
        self._source = source
        self._base_traits = dict(base_traits)
        self._rules, self._evidence = rules, evidence
        self._bound: dict[tuple[Any, ...], tuple[Decision, Callable[..., Any]]] = {}
        self._loaded: dict[str, Callable[..., Any]] = {}
        self._is_frozen = False

    def bind(self, operator: Operator, **traits: object) -> Callable[..., Any]:
        """Return the chosen kernel; the same request returns the same callable.

        Raises:
            CapabilityError: no candidate passes.
            PluginError: the chosen kernel cannot be loaded.
        """
        key = (operator.name, *sorted(traits.items()))
        if key not in self._bound:
            assert not self._is_frozen, f"bind({operator.name}) after the freeze"
            self._bound[key] = self._choose(operator, traits)
        return self._bound[key][1]

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """What was chosen so far, in order."""
        return tuple(decision for decision, _ in self._bound.values())

    def freeze(self) -> None:
        """End binding: a new request afterwards is a mistake of ours."""
        self._is_frozen = True

    def decide(self, operator: Operator, traits: Mapping[str, object]) -> Decision:
        """Choose for a request; nothing is loaded or remembered.

        Raises:
            CapabilityError: no candidate passes.
        """
        request, rules = {**self._base_traits, **traits}, self._rules
        evidence = self._evidence
        return select(
            operator.name,
            self._source.kernel_offers(operator.name),
            request,
            pin=rules.pins.get(operator.name, AUTO),
            fallback=rules.fallback,
            objective=rules.objective,
            preferences=rules.preferences,
            forced=rules.forced,
            evidence=None if evidence is None else evidence.seconds(operator.name, request),
            failures=None if evidence is None else evidence.failures(operator.name, request),
            log_level=logging.DEBUG,  # one line a slot is for users, one a kernel for authors
        )

    def _choose(
        self, operator: Operator, traits: Mapping[str, object]
    ) -> tuple[Decision, Callable[..., Any]]:
        decision = self.decide(operator, traits)
        winner = decision.winner
        if winner.pin not in self._loaded:
            self._loaded[winner.pin] = load_kernel(winner)
        return decision, self._loaded[winner.pin]


def load_kernel(winner: RegisteredOffer[Any]) -> Callable[..., Any]:
    """Import a kernel.

    Raises:
        PluginError: it cannot be loaded, or is not callable.
    """
    offer = winner.offer
    assert isinstance(offer, KernelOffer), f"{winner.pin} is no kernel"
    try:
        with plugin_code():
            kernel = offer.load()
    except Exception as error:
        raise PluginError(
            f"plugin {winner.plugin_id} {winner.plugin_version} failed at load of kernel "
            f"{offer.name} for {offer.operator}: {told(error)}",
            id="offer-load-failed",
        ) from error
    if not callable(kernel):
        raise PluginError(
            f"plugin {winner.plugin_id} {winner.plugin_version}: kernel {offer.name} loaded as "
            f"{kernel!r}, a callable is needed",
            id="offer-invalid",
        )
    return kernel
