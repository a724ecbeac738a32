"""Chooses one offer among candidates, by rules that no install order can sway, and says why.

Order: pin, filter, band, score for the objective, specificity, then (plugin id, offer name).
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.binding import Decision, RegisteredOffer
from tokenspeed.contracts.capability import TRAITS, Clause, unmet_clauses
from tokenspeed.contracts.kernel import Band, KernelOffer
from tokenspeed.errors import CapabilityError, PluginError
from tokenspeed.kernels.explain import one_line, refusal
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

AUTO = "auto"
OBJECTIVES = ("latency", "throughput", "determinism")


@dataclass(frozen=True, slots=True)
class _Judged:
    """One candidate with everything the order compares."""

    candidate: RegisteredOffer[Any]
    band: Band
    score: float
    specificity: int
    clauses: tuple[Clause, ...]

    @property
    def rank(self) -> tuple[float, float, int, str, str]:
        """Smaller is better."""
        name = self.candidate.offer.name
        return (-self.band, -self.score, -self.specificity, self.candidate.plugin_id, name)


def select(
    slot: str,
    candidates: Iterable[RegisteredOffer[Any]],
    traits: Mapping[str, object],
    *,
    pin: str = AUTO,
    fallback: str = "warn",
    objective: str = "latency",
) -> Decision:
    """Choose the best candidate that can do what `traits` ask.

    Args:
        slot: slot or operator name, for the record and messages.
        candidates: in any order.
        traits: the request; neutral values do not count.
        pin: PLUGIN/NAME of the offer to use, or "auto".
        fallback: error, warn or allow, when a faster offer for this device had to be refused.
        objective: latency, throughput, or determinism (then only deterministic offers pass).
    Raises:
        CapabilityError: no candidate passes, the pinned one does not, or fallback is "error" and
            it is one; lists every candidate with its failed clauses.
        PluginError: an offer's score function failed.
    """
    request = _request(traits, objective)
    judged = sorted((_judge(item, request, objective) for item in candidates), key=_by_rank)
    passing = [item for item in judged if not item.clauses]
    record = _record(slot, request, judged, pin, fallback, objective)
    if pin != AUTO:
        winner = _pinned(pin, judged, record)
    elif passing:
        winner = passing[0]
    else:
        raise CapabilityError(refusal(record))
    record["winner"] = winner.candidate.pin
    _mark(record, winner)
    if pin == AUTO:
        _check_fallback(record, winner, judged, fallback)
    LOGGER.info("%s", one_line(record))
    return Decision(winner.candidate, record)


def _request(traits: Mapping[str, object], objective: str) -> dict[str, object]:
    if objective not in OBJECTIVES:
        raise ValueError(f"objective {objective!r}, allowed: {', '.join(OBJECTIVES)}")
    request = dict(traits)
    if objective == "determinism":
        request["deterministic"] = True
    for name in request:
        if name not in TRAITS:
            near = difflib.get_close_matches(name, TRAITS, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(TRAITS)}"
            raise ValueError(f"unknown trait {name!r} in a request; {hint}")
    return {name: value for name, value in request.items() if value != TRAITS[name].neutral}


def declared_traits(offer: Any) -> dict[str, tuple[object, ...]]:
    """Return what an offer declares; a kernel's two properties are traits too."""
    declared = dict(offer.requires)
    if isinstance(offer, KernelOffer):
        if offer.deterministic:
            declared.setdefault("deterministic", (True,))
        if offer.graph_safe:
            declared.setdefault("graph_safe", (True,))
    return declared


def _judge(item: RegisteredOffer[Any], request: Mapping[str, object], objective: str) -> _Judged:
    offer = item.offer
    clauses = unmet_clauses(request, declared_traits(offer))
    band = Band(offer.band) if isinstance(offer, KernelOffer) else Band[offer.band]
    specificity = sum("*" not in values for values in offer.requires.values())
    score = 0.0 if clauses else _score(item, request, objective)
    return _Judged(item, band, score, specificity, clauses)


def _score(item: RegisteredOffer[Any], request: Mapping[str, object], objective: str) -> float:
    if not isinstance(item.offer, KernelOffer) or item.offer.score is None:
        return 0.0
    try:
        score = float(item.offer.score(request, objective))
    except Exception as error:
        raise PluginError(
            f"plugin {item.plugin_id} {item.plugin_version}: score of {item.offer.name} raised "
            f"{type(error).__name__}: {error}"
        ) from error
    if math.isnan(score):
        raise PluginError(f"plugin {item.plugin_id}: score of {item.offer.name} is not a number")
    return score


def _by_rank(item: _Judged) -> tuple[float, float, int, str, str]:
    return item.rank


def _record(
    slot: str,
    request: Mapping[str, object],
    judged: list[_Judged],
    pin: str,
    fallback: str,
    objective: str,
) -> dict[str, Any]:
    return {
        "slot": slot,
        "traits": dict(sorted(request.items())),
        "pin": pin,
        "fallback": fallback,
        "objective": objective,
        "winner": None,
        "is_fallback": False,
        "candidates": [_candidate_record(item) for item in judged],
    }


def _candidate_record(item: _Judged) -> dict[str, Any]:
    clauses = [
        {"id": clause.id, "wanted": clause.wanted, "have": _as_list(clause.have)}
        for clause in item.clauses
    ]
    return {
        "offer": item.candidate.pin,
        "version": item.candidate.plugin_version,
        "band": item.band.name,
        "score": item.score,
        "specificity": item.specificity,
        "verdict": "refused" if clauses else "lost",
        "reason": "; ".join(map(str, item.clauses)),
        "clauses": clauses,
    }


def _as_list(have: tuple[object, ...] | None) -> list[object] | None:
    return None if have is None else list(have)


def _mark(record: dict[str, Any], winner: _Judged) -> None:
    for entry in record["candidates"]:
        if entry["offer"] == winner.candidate.pin:
            entry["verdict"] = "won"
            entry["reason"] = "pinned" if record["pin"] != AUTO else "best of those that pass"
        elif entry["verdict"] == "lost":
            entry["reason"] = _why_lost(entry, winner, record["pin"])


def _why_lost(entry: Mapping[str, Any], winner: _Judged, pin: str) -> str:
    if pin != AUTO:
        return f"{pin} is pinned"
    if entry["band"] != winner.band.name:
        return f"band {entry['band']} < {winner.band.name}"
    if entry["score"] != winner.score:
        return f"score {entry['score']:g} < {winner.score:g}"
    if entry["specificity"] != winner.specificity:
        return f"specificity {entry['specificity']} < {winner.specificity}"
    return "equal otherwise; plugin id and name decide"


def _pinned(pin: str, judged: list[_Judged], record: Mapping[str, Any]) -> _Judged:
    by_pin = {item.candidate.pin: item for item in judged}
    found = by_pin.get(pin)
    if found is None:
        near = difflib.get_close_matches(pin, by_pin, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "pins are written PLUGIN/NAME"
        known = ", ".join(sorted(by_pin)) or "none"
        raise CapabilityError(f"{record['slot']} is pinned to {pin!r}; offered: {known}; {hint}")
    if found.clauses:
        reasons = "; ".join(map(str, found.clauses))
        passing = [item.candidate.pin for item in judged if not item.clauses]
        raise CapabilityError(
            f"{record['slot']} is pinned to {pin}, which cannot do it: {reasons}; "
            f"offers that can: {', '.join(passing) or 'none'}; change the pin or the setting"
        )
    return found


def _check_fallback(
    record: dict[str, Any], winner: _Judged, judged: list[_Judged], fallback: str
) -> None:
    """A faster offer made for this device was refused: report it as `fallback` says."""
    passed_over = [
        item
        for item in judged
        if item.band > winner.band and all(clause.id != "trait.device" for clause in item.clauses)
    ]
    if not passed_over:
        return
    record["is_fallback"] = True
    text = (
        f"{record['slot']} falls back to {winner.candidate.pin} ({winner.band.name}): "
        + "; ".join(
            f"{item.candidate.pin} refused ({', '.join(map(str, item.clauses))})"
            for item in passed_over
        )
    )
    if fallback == "error":
        raise CapabilityError(f"{text}; allow it with --fallback warn, or change the setting")
    if fallback == "warn":
        LOGGER.warning("%s", text)
