"""Random offers and requests over the whole vocabulary, for properties of selection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.binding import RegisteredOffer
from tokenspeed.contracts.capability import TRAITS
from tokenspeed.contracts.kernel import Band
from tokenspeed.contracts.registration import Offer

if TYPE_CHECKING:
    from random import Random

NAMES = ("cpu", "acme", "float32", "q4_1", "mla", "tree")
ARCHES = (("a1",), ("a1", "a2"), ("a2",))


def values_of(name: str) -> tuple[object, ...]:
    """Return a few values of a trait, its neutral one among them."""
    trait = TRAITS[name]
    if name == "arch":
        return ("", *ARCHES)
    if isinstance(trait.neutral, bool):
        return (False, True)
    if trait.unit:
        neutral = () if trait.neutral is None else (trait.neutral,)
        return (*neutral, 2, 64, 128)
    return NAMES if trait.neutral is None else (trait.neutral, *NAMES)


def some_value(random: Random, name: str, *, neutral: bool = True) -> object:
    """Draw a value of a trait."""
    values = [value for value in values_of(name) if neutral or value != TRAITS[name].neutral]
    return random.choice(values)


def some_request(random: Random) -> dict[str, object]:
    """Draw a request of a few traits."""
    names = random.sample(sorted(TRAITS), random.randint(0, 3))
    return {name: some_value(random, name) for name in names}


def some_offers(random: Random) -> list[RegisteredOffer[Offer]]:
    """Draw up to six attention offers of up to three plugins."""
    pins = [(plugin_id, name) for plugin_id in "abc" for name in "xyz"]
    return [
        RegisteredOffer(plugin_id, "1.0", _offer(random, name))
        for plugin_id, name in random.sample(pins, random.randint(0, 6))
    ]


def _offer(random: Random, name: str) -> Offer:
    requires: dict[str, tuple[Any, ...]] = {}
    for trait in TRAITS:
        draw = random.random()
        if draw < 0.4:
            requires[trait] = ("*",)
        elif draw < 0.8:
            listed: list[object] = []
            for value in random.choices(values_of(trait), k=2):
                listed += value if isinstance(value, tuple) else [value]
            requires[trait] = tuple(listed)
    return Offer("attention", name, len, random.choice(list(Band)).name, requires)
