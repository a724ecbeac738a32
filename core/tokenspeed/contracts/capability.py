"""Capabilities: a versioned vocabulary of traits, and the fail-closed match of request and offer.

A request carries a trait only when its value is not neutral. An offer that does not declare a
trait which the request carries does not match: adding a trait to a request never adds candidates.
The words are in `traits.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.contracts.traits import TRAITS, VOCABULARY_VERSION, Compare, Trait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = [
    "CLAUSE_PREFIX",
    "TRAITS",
    "VOCABULARY_VERSION",
    "Clause",
    "Compare",
    "Trait",
    "carried",
    "clause_id",
    "satisfied",
    "unmet_clauses",
]

CLAUSE_PREFIX = "trait."
ANY = "*"


@dataclass(frozen=True, slots=True)
class Clause:
    """One unmet demand: why an offer was refused."""

    id: str
    wanted: object
    have: tuple[object, ...] | None

    def __str__(self) -> str:
        if self.have is None:
            return f"{self.id}: wanted {_shown(self.wanted)}, not declared"
        return f"{self.id}: wanted {_shown(self.wanted)}, has {', '.join(map(repr, self.have))}"


def _shown(value: object) -> str:
    return " or ".join(map(repr, value)) if isinstance(value, tuple) else repr(value)


def clause_id(trait: str) -> str:
    """Return the id of the clause that a trait makes, such as "trait.sinks"."""
    return CLAUSE_PREFIX + trait


def carried(traits: Mapping[str, object]) -> dict[str, object]:
    """Drop neutral values; refuse unknown words.

    Raises:
        KeyError: a trait that the vocabulary does not know.
    """
    return {name: value for name, value in traits.items() if value != TRAITS[name].neutral}


def unmet_clauses(
    request: Mapping[str, object], offered: Mapping[str, tuple[object, ...]]
) -> tuple[Clause, ...]:
    """List the carried traits of `request` that `offered` does not allow, by id."""
    return tuple(
        Clause(clause_id(name), wanted, offered.get(name))
        for name, wanted in sorted(carried(request).items())
        if not satisfied(name, wanted, offered.get(name))
    )


def satisfied(trait: str, wanted: object, have: tuple[object, ...] | None) -> bool:
    """Say whether declared values allow the wanted one: fail closed, "*" allows any."""
    if have is None:
        return False
    return ANY in have or _COMPARE[TRAITS[trait].compare](wanted, have)


def _numbers(values: Iterable[object]) -> list[float]:
    return [float(value) for value in values if isinstance(value, int | float)]


def _has_any(wanted: object, have: tuple[object, ...]) -> bool:
    names = wanted if isinstance(wanted, tuple) else (wanted,)
    return any(name in have for name in names)


def _at_most(wanted: object, have: tuple[object, ...]) -> bool:
    return isinstance(wanted, int | float) and any(wanted <= most for most in _numbers(have))


def _at_least(wanted: object, have: tuple[object, ...]) -> bool:
    return isinstance(wanted, int | float) and any(wanted >= least for least in _numbers(have))


_COMPARE: Mapping[Compare, Callable[[object, tuple[object, ...]], bool]] = {
    Compare.LISTED: lambda wanted, have: wanted in have,
    Compare.ANY_OF: _has_any,
    Compare.AT_MOST: _at_most,
    Compare.AT_LEAST: _at_least,
}
