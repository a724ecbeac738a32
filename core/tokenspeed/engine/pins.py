"""Pins name what a start chooses: a misspelled one is an error, an idle one a warning."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.errors import ConfigError
from tokenspeed.plugins.nearest import suggestion

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PINNED_SLOTS = (
    "attention",
    "communicator",
    "device",
    "grammar",
    "model",
    "moe",
    "sampler",
    "weight_format",
)
SETTING_OF_SLOT = {
    "client_rule": "--client-rules",
    "kv_store": "--kv-store",
    "parser": "--reasoning-parser",
    "policy": "--policy",
    "speculator": "--speculator",
}
"""Slots that are filled by name alone, and the setting that names it."""


def check_named(pins: Mapping[str, str]) -> None:
    """Check that no pin is for a slot that has a setting of its own.

    Raises:
        ConfigError: one is; names the setting.
    """
    for slot, pin in pins.items():
        if slot in SETTING_OF_SLOT:
            raise ConfigError(
                f"pins: {slot}={pin} is for a slot that is filled by name alone; write "
                f"{SETTING_OF_SLOT[slot]} {pin}"
            )


def check_pins(pins: Mapping[str, str], operators: Iterable[str]) -> None:
    """Check that every pin names a slot, a part of one such as "attention.full", or an operator.

    Args:
        operators: those that loaded plugins declare.
    Raises:
        ConfigError: one names something else; suggests the nearest.
    """
    known = {*PINNED_SLOTS, *SETTING_OF_SLOT, *operators}
    for slot, pin in pins.items():
        if slot not in known and slot.partition(".")[0] not in PINNED_SLOTS:
            raise ConfigError(
                f"pins: {slot}={pin}: {slot!r} is no slot or operator that can be pinned; "
                f"{suggestion(slot, known)}"
            )


def idle_pins(pins: Mapping[str, str], chosen: Iterable[str]) -> list[str]:
    """Return a line for each pin that no choice of this start has asked for.

    Args:
        chosen: every slot, part of a slot and operator that was chosen.
    """
    names = set(chosen)
    names |= {name.partition(".")[0] for name in names if name.partition(".")[0] in PINNED_SLOTS}
    return [
        f"pin {slot}={pin} is of no use: this start chooses no {slot}"
        for slot, pin in sorted(pins.items())
        if slot not in names
    ]
