"""What a user may say about choices: objective, fallback, wishes, and clauses that are forced.

Texts come from settings; they are checked here, before any process starts.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokenspeed.contracts.capability import CLAUSE_PREFIX, TRAITS, clause_id
from tokenspeed.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

AUTO = "auto"
FAILED_WHEN_TIMED = "timed.failed"
"""Clause of an offer that raised an error when it was measured on this device."""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a start chooses.

    Args:
        fallback: error, warn or allow, when a faster offer for this device had to be refused.
        objective: latency, throughput, or determinism (then only deterministic offers pass).
        preferences: trait -> value that is wished for, not demanded.
        forced: clause ids that a pinned offer may fail.
        pins: slot or operator -> PLUGIN/NAME.
        defaults: slots among the pins whose pin is a setting's default, that nobody asked for.
    """

    fallback: str = "warn"
    objective: str = "latency"
    preferences: Mapping[str, object] = field(default_factory=dict)
    forced: tuple[str, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)
    defaults: tuple[str, ...] = ()


def parse_forced(texts: Iterable[str]) -> tuple[str, ...]:
    """Check clause ids such as "trait.sinks".

    Raises:
        ConfigError: no clause has this id; names the nearest.
    """
    known = [*map(clause_id, TRAITS), FAILED_WHEN_TIMED]
    for text in texts:
        if text not in known:
            near = difflib.get_close_matches(text, known, n=1, cutoff=0.4)
            nearest = near[0] if near else known[0]
            raise ConfigError(
                f"unsafe_force: {text!r} is no clause id; they are {CLAUSE_PREFIX}TRAIT and "
                f"{FAILED_WHEN_TIMED}, as the refusal lists them; did you mean {nearest!r}?"
            )
    return tuple(dict.fromkeys(texts))


def parse_preferences(texts: Iterable[str]) -> dict[str, object]:
    """Read wishes such as "vendor=acme" or "graph_safe=true".

    Raises:
        ConfigError: not TRAIT=VALUE, an unknown trait, or a value of another type.
    """
    wishes: dict[str, object] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"prefer: {text!r} is not TRAIT=VALUE, such as graph_safe=true")
        if name not in TRAITS:
            near = difflib.get_close_matches(name, TRAITS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(TRAITS)}"
            raise ConfigError(f"prefer: unknown trait {name!r}; {hint}")
        wishes[name] = _value(name, value)
    return wishes


def parse_pins(texts: Iterable[str]) -> dict[str, str]:
    """Read pins such as "linear.dense=reference/linear_rowwise_any".

    Raises:
        ConfigError: not SLOT=PLUGIN/NAME, or one slot is pinned twice.
    """
    pins: dict[str, str] = {}
    for text in texts:
        slot, equals, pin = text.partition("=")
        if not (slot and equals and "/" in pin):
            raise ConfigError(
                f"pins: {text!r} is not SLOT=PLUGIN/NAME or OPERATOR=PLUGIN/NAME, such as "
                "linear.dense=reference/linear_rowwise_any; correct it"
            )
        if slot in pins:
            raise ConfigError(f"pins: {slot} is pinned to {pins[slot]} and to {pin}; keep one")
        pins[slot] = pin
    return pins


def _value(name: str, text: str) -> object:
    neutral = TRAITS[name].neutral
    if isinstance(neutral, bool):
        if text not in ("true", "false"):
            raise ConfigError(f"prefer: {name} is {text!r}, true or false is needed")
        return text == "true"
    if isinstance(neutral, int | float) or TRAITS[name].unit:
        try:
            return float(text) if isinstance(neutral, float) else int(text)
        except ValueError:
            raise ConfigError(f"prefer: {name} is {text!r}, a number is needed") from None
    return text
