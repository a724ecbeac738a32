"""Binds operators to kernels while a model is built: select once, load once, plain callables."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.binding import Decision, OfferSource, RegisteredOffer
from tokenspeed.contracts.kernel import KernelOffer, Operator
from tokenspeed.errors import PluginError
from tokenspeed.kernels.record import AUTO
from tokenspeed.kernels.selection import select

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class KernelRegistry:
    """The kernels that the loaded plugins offer."""

    def __init__(self, source: OfferSource) -> None:
        self._source = source

    def binder(
        self,
        base_traits: Mapping[str, object],
        *,
        fallback: str = "warn",
        objective: str = "latency",
        pins: Mapping[str, str] | None = None,
    ) -> Binder:
        """Return a binder for one model on one device.

        Args:
            base_traits: carried by every request, such as {"device": "cpu", "dtype": "float32"}.
            fallback, objective: as in `selection.select`.
            pins: operator name -> PLUGIN/NAME.
        """
        return Binder(self._source, base_traits, fallback, objective, dict(pins or {}))


class Binder:
    """A KernelBinder (`contracts/kernel.py`) that remembers what it chose and why."""

    def __init__(
        self,
        source: OfferSource,
        base_traits: Mapping[str, object],
        fallback: str,
        objective: str,
        pins: Mapping[str, str],
    ) -> None:
        self._source = source
        self._base_traits = dict(base_traits)
        self._fallback, self._objective, self._pins = fallback, objective, pins
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

    def _choose(
        self, operator: Operator, traits: Mapping[str, object]
    ) -> tuple[Decision, Callable[..., Any]]:
        decision = select(
            operator.name,
            self._source.kernel_offers(operator.name),
            {**self._base_traits, **traits},
            pin=self._pins.get(operator.name, AUTO),
            fallback=self._fallback,
            objective=self._objective,
            log_level=logging.DEBUG,  # one line a slot is for users, one a kernel for authors
        )
        winner = decision.winner
        if winner.pin not in self._loaded:
            self._loaded[winner.pin] = _load(winner)
        return decision, self._loaded[winner.pin]


def _load(winner: RegisteredOffer[Any]) -> Callable[..., Any]:
    offer = winner.offer
    assert isinstance(offer, KernelOffer), f"{winner.pin} is no kernel"
    try:
        kernel = offer.load()
    except Exception as error:
        raise PluginError(
            f"plugin {winner.plugin_id} {winner.plugin_version} failed at load of kernel "
            f"{offer.name} for {offer.operator}: {type(error).__name__}: {error}",
            id="offer-load-failed",
        ) from error
    if not callable(kernel):
        raise PluginError(
            f"plugin {winner.plugin_id} {winner.plugin_version}: kernel {offer.name} loaded as "
            f"{kernel!r}, a callable is needed",
            id="offer-invalid",
        )
    return kernel
