"""What an offer must state about itself, by slot: without it nobody would ever choose the offer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.parser import PARSES
from tokenspeed.errors import PluginError
from tokenspeed.plugins.nearest import suggestion

if TYPE_CHECKING:
    from tokenspeed.contracts.registration import Offer

REQUIRED_FACTS = {"model": "architectures", "parser": "parses"}
"""Slot -> the fact that its offers have: a tuple of names."""


def check_facts(offer: Offer) -> None:
    """Check the facts of an offer.

    Raises:
        PluginError: the slot's fact is missing, is no tuple of names, or names what does not exist.
    """
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


def _check_parses(parser: str, names: tuple[str, ...]) -> None:
    for name in names:
        if name not in PARSES:
            raise PluginError(
                f"parser {parser!r} parses {name!r}: {suggestion(name, PARSES)}", id="offer-invalid"
            )
