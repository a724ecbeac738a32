"""What an offer states about itself: traits of the vocabulary, and facts by slot.

Without them nobody would ever choose the offer, or it would be chosen for what it cannot do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.attention import CacheDemand
from tokenspeed.contracts.capability import TRAITS
from tokenspeed.contracts.parser import PARSES, TOOL_CALLS
from tokenspeed.errors import PluginError
from tokenspeed.plugins.nearest import suggestion

if TYPE_CHECKING:
    from tokenspeed.contracts.kernel import KernelOffer
    from tokenspeed.contracts.registration import Offer

REQUIRED_FACTS = {"model": "architectures", "parser": "parses"}
"""Slot -> the fact that its offers have: a tuple of names."""


def check_traits(offer: Offer | KernelOffer) -> None:
    """Check the traits that an offer declares.

    A text in place of a tuple would be searched for parts: "float16" is in "bfloat16".

    Raises:
        PluginError: an unknown trait, or values that are no tuple.
    """
    for trait, values in offer.requires.items():
        if trait not in TRAITS:
            raise PluginError(
                f"offer {offer.name!r}: unknown trait {trait!r}: {suggestion(trait, TRAITS)}",
                id="offer-invalid",
            )
        if not isinstance(values, tuple):
            raise PluginError(
                f"offer {offer.name!r} requires {trait} = {values!r}, a tuple of values is needed; "
                f"write {trait!r}: ({values!r},)",
                id="offer-invalid",
            )


def check_facts(offer: Offer, device_kinds: tuple[str, ...]) -> None:
    """Check the facts of an offer.

    Args:
        device_kinds: of the plugin's manifest.
    Raises:
        PluginError: the slot's fact is missing, is no tuple of names, or names what does not exist.
    """
    if offer.slot == "device":
        _check_kind(str(offer.facts.get("kind", offer.name)), offer.name, device_kinds)
    demand = offer.facts.get("cache")
    if offer.slot == "attention" and not isinstance(demand, CacheDemand | None):
        raise PluginError(
            f"offer {offer.name!r} for slot attention has facts['cache'] = {demand!r}, a "
            "tokenspeed_sdk.CacheDemand is needed; write one, or leave it out",
            id="offer-invalid",
        )
    fact = REQUIRED_FACTS.get(offer.slot)
    if fact is None:
        return
    names = offer.facts.get(fact)
    if not isinstance(names, tuple) or not names or not all(isinstance(n, str) for n in names):
        raise PluginError(
            f"offer {offer.name!r} for slot {offer.slot} has facts[{fact!r}] = {names!r}, a tuple "
            f"of names is needed; write facts={{{fact!r}: (...,)}}",
            id="offer-invalid",
        )
    if offer.slot == "parser":
        _check_parses(offer.name, names)


def _check_kind(kind: str, name: str, device_kinds: tuple[str, ...]) -> None:
    if kind not in device_kinds and "*" not in device_kinds:
        raise PluginError(
            f"offer {name!r} for slot device is of kind {kind!r}, the manifest's device_kinds are "
            f"{', '.join(device_kinds) or 'none'}; make the two equal",
            id="offer-invalid",
        )


def _check_parses(parser: str, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in PARSES:
            raise PluginError(
                f"parser {parser!r} parses {name!r}: {suggestion(name, PARSES)}", id="offer-invalid"
            )
    if TOOL_CALLS in names:
        raise PluginError(
            f"parser {parser!r} parses {TOOL_CALLS}, which arrives with tools in requests in a "
            "later version; this one takes parsers of reasoning",
            id="slot-not-live",
        )
