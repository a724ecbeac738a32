"""What an offer must state about itself, by slot: without it nobody would ever choose the offer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.errors import PluginError

if TYPE_CHECKING:
    from tokenspeed.contracts.registration import Offer

REQUIRED_FACTS = {"model": "architectures"}
"""Slot -> the fact that its offers have: a tuple of names."""


def check_facts(offer: Offer) -> None:
    """Check the facts of an offer.

    Raises:
        PluginError: the slot's fact is missing or is no tuple of names.
    """
    fact = REQUIRED_FACTS.get(offer.slot)
    if fact is None:
        return
    names = offer.facts.get(fact)
    if isinstance(names, tuple) and names and all(isinstance(name, str) for name in names):
        return
    raise PluginError(
        f"offer {offer.name!r} for slot {offer.slot} has facts[{fact!r}] = {names!r}, a tuple of "
        f"names is needed; write facts={{{fact!r}: (...,)}}",
        id="offer-invalid",
    )
