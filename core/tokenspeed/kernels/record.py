"""Decision records: what was asked, every candidate, and why it won, lost or was refused."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.binding import RegisteredOffer
    from tokenspeed.contracts.capability import Clause
    from tokenspeed.contracts.kernel import Band

AUTO = "auto"


@dataclass(frozen=True, slots=True)
class Judged:
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


def make_record(
    slot: str,
    request: Mapping[str, object],
    judged: list[Judged],
    pin: str,
    fallback: str,
    objective: str,
) -> dict[str, Any]:
    """Return the record before a winner is known, candidates best first."""
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


def _candidate_record(item: Judged) -> dict[str, Any]:
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


def mark_winner(record: dict[str, Any], winner: Judged) -> None:
    """Write who won, and why each of the others lost."""
    record["winner"] = winner.candidate.pin
    num_passing = sum(not entry["clauses"] for entry in record["candidates"])
    best = "the only one that passes" if num_passing == 1 else f"best of {num_passing} that pass"
    for entry in record["candidates"]:
        if entry["offer"] == winner.candidate.pin:
            entry["verdict"] = "won"
            entry["reason"] = "pinned" if record["pin"] != AUTO else best
        elif entry["verdict"] == "lost":
            entry["reason"] = _why_lost(entry, winner, record["pin"])


def _why_lost(entry: Mapping[str, Any], winner: Judged, pin: str) -> str:
    if pin != AUTO:
        return f"{pin} is pinned"
    if entry["band"] != winner.band.name:
        return f"band {entry['band']} < {winner.band.name}"
    if entry["score"] != winner.score:
        return f"score {entry['score']:g} < {winner.score:g}"
    if entry["specificity"] != winner.specificity:
        return f"specificity {entry['specificity']} < {winner.specificity}"
    return "equal otherwise; plugin id and name decide"
