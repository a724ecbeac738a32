"""The client rules of a server: chosen by `--client-rules`, guarded against mistakes, counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.contracts.conversation import Conversation
from tokenspeed.errors import CapabilityError, EngineError, PluginError, plugin_code, told
from tokenspeed.plugins.trust import CORE_ID

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenspeed.contracts.binding import RegisteredOffer
    from tokenspeed.contracts.client_rule import ClientRule, TemplateFacts
    from tokenspeed.contracts.registration import Offer
    from tokenspeed.plugins import Registry

ALL, NONE, OFF = "all", "none", "-"


@dataclass(frozen=True, slots=True)
class NamedRule:
    """A rule and its PLUGIN/NAME, for errors and metrics."""

    pin: str
    rule: ClientRule


class ClientRules:
    """Applies rules in their order. Any thread, as far as `count` may be called from it.

    Args:
        count: told of each rule that changed a request's conversation.
    """

    def __init__(
        self, rules: Sequence[NamedRule] = (), count: Callable[[str], None] = lambda pin: None
    ) -> None:
        self.pins = tuple(item.pin for item in rules)
        self._rules = tuple(rules)
        self._count = count

    def apply(self, conversation: Conversation) -> Conversation:
        """Return the conversation without its client's noise.

        Raises:
            EngineError: a rule failed; names it.
        """
        for item in self._rules:
            changed = _applied(item, conversation)
            if changed is not conversation:
                self._count(item.pin)
            conversation = changed
        return conversation


def _applied(item: NamedRule, conversation: Conversation) -> Conversation:
    try:
        with plugin_code():
            changed: object = item.rule.apply(conversation)
        if not isinstance(changed, Conversation):
            raise TypeError(f"it returned {type(changed).__name__}, no Conversation")
    except Exception as error:
        raise EngineError(
            f"client rule {item.pin} failed: {told(error)}; this is a mistake of "
            f"the plugin: report it to its author, or serve with --client-rules {ALL},{OFF}"
            f"{item.pin}"
        ) from error
    return changed


def load_rules(
    names: Sequence[str], registry: Registry, template: TemplateFacts
) -> tuple[NamedRule, ...]:
    """Load the rules that the setting names, in the order in which they run.

    Args:
        names: as in `--client-rules`: "all", NAME or PLUGIN/NAME, with "-" before it off; "none".
    Raises:
        PluginError: a rule cannot be loaded.
        CapabilityError: no loaded plugin offers a name, or several do.
    """
    offers = sorted(registry.offers("client_rule"), key=_place)
    return tuple(_loaded(item, template) for item in _chosen(names, offers))


def _place(item: RegisteredOffer[Offer]) -> tuple[bool, int, str]:
    """The core's rules run first; then by the place that an offer states, then by name."""
    return item.plugin_id != CORE_ID, item.offer.facts.get("place", 0), item.pin


def _chosen(
    names: Sequence[str], offers: Sequence[RegisteredOffer[Offer]]
) -> list[RegisteredOffer[Offer]]:
    off = {_named(name.removeprefix(OFF), offers) for name in names if name.startswith(OFF)}
    plain = [name for name in names if not name.startswith(OFF) and name != NONE]
    is_all = ALL in plain or (not plain and NONE not in names)
    on = {_named(name, offers) for name in plain if name != ALL}
    return [item for item in offers if (is_all or item.pin in on) and item.pin not in off]


def _named(name: str, offers: Sequence[RegisteredOffer[Offer]]) -> str:
    """Return the PLUGIN/NAME that a name means."""
    found = [item.pin for item in offers if name in (item.pin, item.offer.name)]
    if len(found) == 1:
        return found[0]
    if found:
        raise CapabilityError(
            f"client_rules: {name!r} is offered by {', '.join(found)}; name one with its plugin",
            id="pin-unknown",
        )
    pins = ", ".join(item.pin for item in offers)
    raise CapabilityError(
        f"client_rules: {name!r} is not offered; loaded plugins have: {pins}; choose of these, "
        f"{ALL} or {NONE}, each with a {OFF} before it to switch it off",
        id="pin-unknown",
    )


def _loaded(item: RegisteredOffer[Offer], template: TemplateFacts) -> NamedRule:
    try:
        with plugin_code():
            return NamedRule(item.pin, item.offer.load(template=template))
    except Exception as error:
        raise PluginError(
            f"plugin {item.plugin_id} {item.plugin_version} failed at load of client_rule/"
            f"{item.offer.name}: {told(error)}; serve with --client-rules "
            f"{ALL},{OFF}{item.pin}",
            id="offer-load-failed",
        ) from error
