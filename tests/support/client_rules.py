"""The core's client rules in a registry of their own, with those of made-up plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.builtin import plugin
from tokenspeed.contracts.registration import Offer
from tokenspeed.plugins.registry import Registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.contracts.conversation import Conversation


class Rule:
    """Does what it is told to."""

    def __init__(self, apply: Callable[[Conversation], object]) -> None:
        self.apply = apply


class Stage:
    """Collects what the core offers."""

    def __init__(self) -> None:
        self.offers: list[Offer] = []

    def offer(self, offer: Offer) -> None:
        """Take an offer."""
        self.offers.append(offer)


def core_registry(*others: str) -> Registry:
    """Return the core's rules, and those of other plugins, PLUGIN/NAME, that do nothing."""
    stage = Stage()
    plugin.register_client_rules(stage)  # type: ignore[arg-type]
    found = Registry()
    for pin in others:
        plugin_id, _, name = pin.partition("/")
        offer = Offer("client_rule", name, lambda template: Rule(lambda chat: chat))
        found.commit(plugin_id, "1.0", [("client_rule", offer)])
    found.commit("core", "1.0", [("client_rule", offer) for offer in stage.offers])
    return found
