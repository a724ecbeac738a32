"""How a start chooses, from its settings; and what every request says of the device."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.pins import check_named
from tokenspeed.errors import ConfigError
from tokenspeed.kernels.rules import AUTO, Rules, parse_forced, parse_pins, parse_preferences

if TYPE_CHECKING:
    from tokenspeed.contracts.device import DeviceFacts

NAMED_PINS = ("attention", "sampler", "policy")
"""Slots whose pin is a setting of its own."""
DEFAULT_POLICY = next(item.default for item in fields(EngineConfig) if item.name == "policy")


def rules_of(config: EngineConfig) -> Rules:
    """Read the rules of a start; the launcher calls it before it starts a process.

    Raises:
        ConfigError: a pin, wish or forced clause is not as needed.
    """
    pins = parse_pins(config.pins)
    check_named(pins)
    for slot in NAMED_PINS:
        pin = getattr(config, slot)
        if pin != AUTO and slot in pins and pins[slot] != pin:
            raise ConfigError(f"{slot} is pinned to {pin} and by pins to {pins[slot]}; keep one")
        if pin != AUTO:
            pins[slot] = pin
    forced = parse_forced(config.unsafe_force)
    if forced and not set(pins) - {"policy"}:
        raise ConfigError(
            f"unsafe_force is {','.join(forced)} and nothing is pinned; only pinned offers can be "
            "forced: pin one (--attention PLUGIN/NAME), or drop --unsafe-force"
        )
    return Rules(
        fallback=config.fallback,
        objective="determinism" if config.deterministic else config.objective,
        preferences=parse_preferences(config.prefer),
        forced=forced,
        pins=pins,
        defaults=("policy",) if config.policy == DEFAULT_POLICY else (),
    )


def device_traits(facts: DeviceFacts) -> dict[str, object]:
    """Return what every request carries: the kind, the architectures that run, further facts."""
    runs = tuple(dict.fromkeys((facts.arch, *facts.runs))) if facts.arch else ""
    return {**facts.traits, "device": facts.kind, "arch": runs}
