"""How a start decides what fills a slot, and loads it: by the settings' rules, with a record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.engine.built import building, check_built
from tokenspeed.engine.pins import check_pins
from tokenspeed.engine.rules import rules_of
from tokenspeed.errors import ConfigError, PluginError, TokenSpeedError, told
from tokenspeed.kernels import Decision, select
from tokenspeed.kernels.not_offered import not_offered
from tokenspeed.kernels.rules import AUTO

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.contracts.binding import RegisteredOffer
    from tokenspeed.contracts.registration import Offer
    from tokenspeed.kernels.registry import Evidence
    from tokenspeed.plugins import Registry


class Deciding:
    """Decides slot by slot; `decisions` is what the BindingPlan is made of.

    Whoever builds sets `evidence`, measured times, once the model's shapes are known.
    """

    def __init__(self, config: EngineConfig, registry: Registry) -> None:
        self.decisions: dict[str, Decision] = {}
        self.evidence: Evidence | None = None
        self._config = config
        self._registry = registry
        self.rules = rules_of(config)
        check_pins(self.rules.pins, registry.operators)

    def named(self, slot: str) -> Decision | None:
        """Choose what is only used when the setting of the slot's name names it; None: it does not.

        Raises:
            CapabilityError: no loaded plugin offers it.
        """
        name: str = getattr(self._config, slot)
        return self._decide(slot, self._offers_named(slot, name), {}) if name else None

    def _offers_named(self, slot: str, name: str) -> Sequence[RegisteredOffer[Offer]]:
        """Return the offers of a slot with this PLUGIN/NAME or NAME.

        Raises:
            CapabilityError: no loaded plugin has one.
        """
        offers = self._registry.offers(slot)
        named = [item for item in offers if name in (item.pin, item.offer.name)]
        if not named:
            raise not_offered(slot, name, (item.pin for item in offers))
        return named

    def _decide(
        self,
        slot: str,
        offers: Sequence[RegisteredOffer[Offer]],
        traits: Mapping[str, object],
        *,
        wishes: Mapping[str, object] | None = None,
        pin: str | None = None,
    ) -> Decision:
        """Choose for a slot, or for a part of it such as "attention.full".

        Args:
            pin: None: that of the settings.
        """
        rules, base, evidence = self.rules, slot.partition(".")[0], self.evidence
        if pin is None:
            pin = rules.pins.get(slot, rules.pins.get(base, AUTO))
        decision = select(
            slot,
            offers,
            traits,
            pin=pin,
            pinned_as="the default" if slot in rules.defaults else "pinned",
            fallback=rules.fallback,
            # What nobody computes with has no determinism to ask for.
            objective=rules.objective if traits else "latency",
            preferences={**(wishes or {}), **rules.preferences},
            evidence=None if evidence is None else evidence.seconds(slot, traits),
            failures=None if evidence is None else evidence.failures(slot, traits),
            forced=rules.forced if pin != AUTO else (),
        )
        self.decisions[slot] = decision
        return decision

    def _load(self, slot: str, decision: Decision, **arguments: Any) -> Any:
        winner = decision.winner
        try:
            with building(winner, f"load of {slot}/{winner.offer.name}"):
                built = winner.offer.load(**arguments)
        except (ConfigError, PluginError):
            raise  # a setting is wrong, not the plugin; or the plugin has been named
        except TokenSpeedError as error:  # of ours, but said by the plugin: it is named too
            raise PluginError(
                f"plugin {winner.plugin_id} {winner.plugin_version} failed at load of "
                f"{slot}/{winner.offer.name}: {told(error)}; fix or leave out the plugin",
                id="offer-load-failed",
            ) from error
        check_built(slot, built, winner.pin)
        return built
