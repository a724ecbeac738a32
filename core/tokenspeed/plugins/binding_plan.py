"""The frozen outcome of all choices: which offer fills each slot, which kernel each operator call.

The digest names the choices, not the machine's speed or paths: two processes that bound the same
offers of the same versions, forced past the same clauses, agree on it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tokenspeed.plugins.slots import API_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokenspeed.contracts.binding import Decision, RegisteredOffer


@dataclass(frozen=True, slots=True)
class BindingPlan:
    """What the engine was built from.

    Args:
        slots: slot (or slot and detail, such as "attention.full") -> the decision that filled it.
        kernels: kernel decisions in the order they were made.
        digest: 16 hex digits over plugin, version and offer name of every choice, and its taint.
    """

    slots: Mapping[str, Decision]
    kernels: tuple[Decision, ...]
    digest: str

    @classmethod
    def of(cls, slots: Mapping[str, Decision], kernels: Iterable[Decision] = ()) -> BindingPlan:
        """Freeze decisions into a plan."""
        kernels = tuple(kernels)
        frozen = MappingProxyType(dict(sorted(slots.items())))
        return cls(frozen, kernels, _digest(frozen, kernels))

    def names(self) -> tuple[str, ...]:
        """Return every slot and operator that was chosen."""
        return (*self.slots, *(str(decision.record["slot"]) for decision in self.kernels))

    @property
    def forced(self) -> dict[str, list[str]]:
        """Clauses that were forced, by slot or operator: what taints the plan."""
        named = zip(self.names(), (*self.slots.values(), *self.kernels), strict=True)
        return {name: list(d.record["forced"]) for name, d in named if d.record["forced"]}

    def to_json(self) -> dict[str, Any]:
        """Return the plan with every decision record as JSON data."""
        return {
            "digest": self.digest,
            "api_version": API_VERSION,
            "is_tainted": bool(self.forced),
            "forced": self.forced,
            "slots": {name: _entry(decision) for name, decision in self.slots.items()},
            "kernels": [_entry(decision) for decision in self.kernels],
        }


def _digest(slots: Mapping[str, Decision], kernels: tuple[Decision, ...]) -> str:
    choices = [
        [name, *_identity(decision.winner), *decision.record["forced"]]
        for name, decision in slots.items()
    ]
    bound = {
        (
            str(decision.record["slot"]),
            _traits(decision),
            *_identity(decision.winner),
            *decision.record["forced"],
        )
        for decision in kernels
    }
    text = json.dumps([API_VERSION, choices, sorted(bound)], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _identity(winner: RegisteredOffer[Any]) -> tuple[str, str, str]:
    return winner.plugin_id, winner.plugin_version, winner.offer.name


def _traits(decision: Decision) -> str:
    return json.dumps(decision.record["traits"], sort_keys=True, default=str)


def _entry(decision: Decision) -> dict[str, Any]:
    plugin_id, version, name = _identity(decision.winner)
    return {"plugin": plugin_id, "version": version, "offer": name, "record": decision.record}
