"""Decision records as text: who won, who lost, who was refused, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokenspeed.contracts.binding import Decision


def explain(decisions: Iterable[Decision]) -> str:
    """Return a paragraph for each decision, candidates best first."""
    return "\n\n".join(paragraph(decision.record) for decision in decisions)


def one_line(record: Mapping[str, Any]) -> str:
    """Return `slot (traits) -> PLUGIN/NAME (band: reason)` for the log."""
    won = next(entry for entry in record["candidates"] if entry["verdict"] == "won")
    return f"{asked(record)} -> {won['offer']} ({won['band']}: {won['reason']})"


def refusal(record: Mapping[str, Any]) -> str:
    """Return the error text for a request that nobody can serve."""
    candidates = record["candidates"]
    text = f"no kernel for {asked(record)}: {_count(len(candidates), 'candidate')}"
    if not candidates:
        return f"{text}; load a plugin that offers one (tokenspeed plugins list)"
    common = _common_clauses(candidates)
    if common:
        text += f", none take {' or '.join(common)}"
    details = "; ".join(f"{entry['offer']} refused: {entry['reason']}" for entry in candidates)
    return f"{text}: {details}; change the setting or load a plugin that takes it"


def paragraph(record: Mapping[str, Any]) -> str:
    """Return one record: the request and its outcome, then a line for each candidate."""
    lines = [headline(record)]
    for entry in record["candidates"]:
        head = f"  {entry['verdict']:8}{entry['offer']} {entry['version']} {entry['band']}"
        lines.append(f"{head}: {entry['reason']}")
    return "\n".join(lines)


def headline(record: Mapping[str, Any]) -> str:
    """Return the request, who won, and what taints or helped the choice."""
    text = f"{asked(record)} -> {record['winner'] or 'nobody'}"
    if record["forced"]:
        text += f"   TAINTED: forced {', '.join(record['forced'])}"
    if record["evidence"]["used"]:
        text += "   by measured times"
    return text


def asked(record: Mapping[str, Any]) -> str:
    """Return `slot (traits) on device`."""
    traits = dict(record["traits"])
    device = traits.pop("device", None)
    dtype = traits.pop("dtype", None)
    parts = [str(dtype)] if dtype is not None else []
    parts += [f"{name}={_shown(value)}" for name, value in traits.items()]
    text = f"{record['slot']} ({', '.join(parts)})" if parts else str(record["slot"])
    return f"{text} on {device}" if device is not None else text


def _shown(value: object) -> str:
    return "|".join(map(str, value)) if isinstance(value, list) else str(value)


def _common_clauses(candidates: list[dict[str, Any]]) -> list[str]:
    """Return the demands that every candidate failed."""
    failed = [
        {clause["id"]: clause["wanted"] for clause in entry["clauses"]} for entry in candidates
    ]
    return [
        f"{clause_id.removeprefix('trait.')} {_shown(wanted)}"
        for clause_id, wanted in failed[0].items()
        if all(clause_id in other for other in failed)
    ]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
