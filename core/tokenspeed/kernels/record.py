"""Decision records: what was asked, every candidate, and why it won, lost or was refused."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.kernels.rules import AUTO

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokenspeed.contracts.capability import Clause
    from tokenspeed.kernels.judging import Judged


def make_record(
    slot: str,
    request: Mapping[str, object],
    judged: list[Judged],
    *,
    pin: str,
    fallback: str,
    objective: str,
    preferences: Mapping[str, object],
    evidence_note: str,
) -> dict[str, Any]:
    """Return the record before a winner is known, candidates best first.

    Args:
        evidence_note: why measured times do not count; "": they do.
    """
    return {
        "slot": slot,
        "traits": {name: _as_json(value) for name, value in sorted(request.items())},
        "pin": pin,
        "fallback": fallback,
        "objective": objective,
        "preferences": dict(sorted(preferences.items())),
        "evidence": {"used": evidence_note == "", "note": evidence_note},
        "winner": None,
        "is_fallback": False,
        "forced": [],
        "candidates": [_candidate_record(item) for item in judged],
    }


def _candidate_record(item: Judged) -> dict[str, Any]:
    return {
        "offer": item.candidate.pin,
        "version": item.candidate.plugin_version,
        "band": item.band.name,
        "score": item.score,
        "preferences": item.num_preferences,
        "specificity": item.specificity,
        "measured_us": _microseconds(item.seconds),
        "verdict": "refused" if item.clauses else "lost",
        "reason": "; ".join(map(str, item.clauses)),
        "clauses": _clauses(item.clauses),
        "forced": _clauses(item.forced),
    }


def _clauses(clauses: Iterable[Clause]) -> list[dict[str, Any]]:
    return [
        {"id": clause.id, "wanted": _as_json(clause.wanted), "have": _as_json(clause.have)}
        for clause in clauses
    ]


def _as_json(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def mark_pinned(record: dict[str, Any], pinned_as: str) -> None:
    """Write why whoever is not pinned lost, which holds whether the pin can be used or not."""
    for entry in record["candidates"]:
        if entry["verdict"] == "lost" and entry["offer"] != record["pin"]:
            entry["reason"] = f"{record['pin']} is {pinned_as}"


def mark_winner(
    record: dict[str, Any], winner: Judged, *, pinned_as: str, by_evidence: bool
) -> None:
    """Write who won, and why each of the others lost."""
    record["winner"] = winner.candidate.pin
    best = _why_best(record, winner, by_evidence=by_evidence)
    for entry in record["candidates"]:
        if entry["offer"] == winner.candidate.pin:
            entry["verdict"] = "won"
            entry["reason"] = _why_pinned(winner, pinned_as) if record["pin"] != AUTO else best
        elif entry["verdict"] == "lost" and record["pin"] == AUTO:
            entry["reason"] = _why_lost(entry, winner, by_evidence=by_evidence)


def _why_best(record: Mapping[str, Any], winner: Judged, *, by_evidence: bool) -> str:
    num_passing = sum(not entry["clauses"] for entry in record["candidates"])
    if num_passing == 1:
        return "the only one that passes"
    best, best_us = f"best of {num_passing} that pass", _microseconds(winner.seconds)
    return f"{best}, measured {best_us:,.1f} us" if by_evidence and best_us is not None else best


def _why_pinned(winner: Judged, pinned_as: str) -> str:
    if not winner.forced:
        return pinned_as
    return f"{pinned_as}, and forced past " + "; ".join(map(str, winner.forced))


def _why_lost(entry: Mapping[str, Any], winner: Judged, *, by_evidence: bool) -> str:
    own_us, best_us = entry["measured_us"], _microseconds(winner.seconds)
    if by_evidence and own_us is None:
        return "not measured, others were"
    if by_evidence and own_us is not None and best_us is not None and own_us != best_us:
        return f"measured {own_us:,.1f} us > {best_us:,.1f} us"
    if entry["band"] != winner.band.name:
        return f"band {entry['band']} < {winner.band.name}"
    if entry["score"] != winner.score:
        return f"score {entry['score']:g} < {winner.score:g}"
    if entry["preferences"] != winner.num_preferences:
        return f"wishes satisfied {entry['preferences']} < {winner.num_preferences}"
    if entry["specificity"] != winner.specificity:
        return f"specificity {entry['specificity']} < {winner.specificity}"
    return "equal otherwise; plugin id and name decide"


def _microseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e6, 3)
