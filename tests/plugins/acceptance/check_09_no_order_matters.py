"""Acceptance 9: who arrives when decides nothing: installs, entry points, flags, candidates."""

from __future__ import annotations

from random import Random
from typing import Any

from tests.support.choices import some_offers, some_request

from tokenspeed.config.schema import EngineConfig
from tokenspeed.contracts.binding import RegisteredOffer
from tokenspeed.contracts.registration import Offer
from tokenspeed.engine.rules import rules_of
from tokenspeed.errors import CapabilityError, ConfigError
from tokenspeed.kernels import select
from tokenspeed.plugins.registry import Registry

CASES = 1000


def test_09_no_order_matters() -> None:
    seed = Random().randrange(1 << 32)
    random = Random(seed)
    for case in range(CASES):
        offers, request = some_offers(random), some_request(random)
        flags = some_flags(random, offers)
        evidence = {
            item.pin: random.choice((1e-6, 2e-6)) for item in offers if random.random() < 0.7
        }
        told = [
            outcome(shuffled(random, offers), request, shuffled_flags(random, flags), evidence)
            for _ in range(3)
        ]
        assert told[0] == told[1] == told[2], (seed, case)


def outcome(
    offers: list[RegisteredOffer[Offer]],
    request: dict[str, object],
    flags: dict[str, tuple[str, ...]],
    evidence: dict[str, float],
) -> object:
    """Install plugin by plugin in the order of `offers`, and choose."""
    registry = Registry()
    for plugin_id in dict.fromkeys(item.plugin_id for item in offers):
        staged = [("attention", item.offer) for item in offers if item.plugin_id == plugin_id]
        registry.commit(plugin_id, "1.0", staged)
    try:
        rules = rules_of(EngineConfig(**flags))  # type: ignore[arg-type]
        return select(
            "attention",
            registry.offers("attention"),
            request,
            pin=rules.pins.get("attention", "auto"),
            preferences=rules.preferences,
            forced=rules.forced,
            fallback="allow",
            evidence=evidence,
        ).record
    except (CapabilityError, ConfigError) as error:
        return str(error)


def some_flags(random: Random, offers: list[RegisteredOffer[Offer]]) -> dict[str, tuple[str, ...]]:
    pins = ["linear.dense=a/x"]
    if offers and random.random() < 0.3:
        pins.append(f"attention={random.choice(offers).pin}")
    return {
        "prefer": ("graph_safe=true", "vendor=acme", "window=128"),
        "unsafe_force": ("trait.sinks", "trait.window") if random.random() < 0.5 else (),
        "pins": tuple(pins),
    }


def shuffled(random: Random, items: Any) -> list[Any]:
    return random.sample(list(items), len(items))


def shuffled_flags(random: Random, flags: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    names = shuffled(random, flags)
    return {name: tuple(shuffled(random, flags[name])) for name in names}
