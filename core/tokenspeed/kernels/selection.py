"""Chooses one offer among candidates, by rules that no install order can sway, and says why.

Order: pin, filter, measured evidence, band, score for the objective, satisfied preferences,
specificity, then (plugin id, offer name). Each step decides only what those before left open.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.binding import Decision, RegisteredOffer
from tokenspeed.contracts.capability import clause_id
from tokenspeed.contracts.kernel import Band
from tokenspeed.errors import CapabilityError
from tokenspeed.kernels.explain import one_line, paragraph, refusal
from tokenspeed.kernels.judging import Judged, judge, make_request
from tokenspeed.kernels.not_offered import not_offered
from tokenspeed.kernels.record import make_record, mark_pinned, mark_winner
from tokenspeed.kernels.rules import AUTO
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

MAX_NEAREST = 3


def select(
    slot: str,
    candidates: Iterable[RegisteredOffer[Any]],
    traits: Mapping[str, object],
    *,
    pin: str = AUTO,
    pinned_as: str = "pinned",
    fallback: str = "warn",
    objective: str = "latency",
    preferences: Mapping[str, object] | None = None,
    evidence: Mapping[str, float] | None = None,
    failures: Mapping[str, str] | None = None,
    forced: tuple[str, ...] = (),
    log_level: int = logging.INFO,
) -> Decision:
    """Choose the best candidate that can do what `traits` ask.

    Args:
        slot: slot or operator name, for the record and messages.
        candidates: in any order.
        traits: the request; neutral values do not count.
        pin: PLUGIN/NAME of the offer to use, or "auto".
        pinned_as: what the record says of a pin; "the default" where nobody asked for it.
        fallback: error, warn or allow, when a faster offer for this device had to be refused.
        objective: latency, throughput, or determinism (then only deterministic offers pass).
        preferences: trait -> value that is wished for; more satisfied wishes win a tie.
        evidence: PLUGIN/NAME -> seconds measured on this device for this request.
        failures: PLUGIN/NAME -> why it could not be measured: it is refused.
        forced: ids of clauses that the pinned offer may fail; nobody else profits.
        log_level: of the line that says who won and why.
    Raises:
        CapabilityError: no candidate passes, the pinned one does not, or fallback is "error" and
            it is one; lists every candidate with its failed clauses and carries the record.
        PluginError: an offer's score function failed.
    """
    request = make_request(traits, objective)
    wishes, seconds = dict(preferences or {}), dict(evidence or {})
    judged = [
        judge(
            item,
            request,
            objective=objective,
            preferences=wishes,
            forced=forced if item.pin == pin else (),
            seconds=seconds.get(item.pin),
            failure=(failures or {}).get(item.pin, ""),
        )
        for item in candidates
    ]
    note = _evidence_note(judged)
    judged.sort(key=lambda item: item.rank(by_evidence=note == ""))
    record = make_record(
        slot,
        request,
        judged,
        pin=pin,
        fallback=fallback,
        objective=objective,
        preferences=wishes,
        evidence_note=note,
    )
    if pin != AUTO:
        mark_pinned(record, pinned_as)
    winner = _winner(pin, judged, record)
    mark_winner(record, winner, pinned_as=pinned_as, by_evidence=note == "")
    if pin == AUTO:
        _check_fallback(record, winner, judged, fallback)
    LOGGER.log(log_level, "%s", one_line(record))
    return Decision(winner.candidate, record)


def _evidence_note(judged: Iterable[Judged]) -> str:
    """Return why measured times do not count, or "" when they do."""
    passing = [item for item in judged if item.passes]
    if all(item.seconds is None for item in passing):
        return "nothing was measured"
    finalists = [item for item in passing if item.band >= Band.PORTABLE] or passing
    missing = sorted(item.candidate.pin for item in finalists if item.seconds is None)
    return f"not measured: {', '.join(missing)}" if missing else ""


def _winner(pin: str, judged: list[Judged], record: dict[str, Any]) -> Judged:
    if pin != AUTO:
        winner = _pinned(pin, judged, record)
        if winner.forced:
            _taint(record, winner)
        return winner
    passing = [item for item in judged if item.passes]
    if not passing:
        raise CapabilityError(refusal(record), id="no-candidate", record=record)
    return passing[0]


def _pinned(pin: str, judged: list[Judged], record: Mapping[str, Any]) -> Judged:
    by_pin = {item.candidate.pin: item for item in judged}
    found = by_pin.get(pin)
    if found is None:
        raise not_offered(record["slot"], pin, by_pin, record=record)
    if found.clauses:
        reasons = "; ".join(map(str, found.clauses))
        ids = ",".join(clause.id for clause in found.clauses)
        raise CapabilityError(
            f"{record['slot']} is pinned to {pin}, which cannot do it: {reasons}; nearest offers: "
            f"{_nearest(judged, found)}; change the pin or the setting, or take the risk with "
            f"--unsafe-force {ids}\n{paragraph(record)}",
            id="pin-unsupported",
            record=record,
        )
    return found


def _nearest(judged: Iterable[Judged], refused: Judged) -> str:
    """Name the offers that can do it, then those that lack least."""
    others = sorted(
        (item for item in judged if item is not refused), key=lambda item: len(item.clauses)
    )
    texts = [
        item.candidate.pin
        if item.passes
        else f"{item.candidate.pin} (fails {', '.join(clause.id for clause in item.clauses)})"
        for item in others[:MAX_NEAREST]
    ]
    return ", ".join(texts) or "none"


def _taint(record: dict[str, Any], winner: Judged) -> None:
    record["forced"] = [clause.id for clause in winner.forced]
    LOGGER.warning(
        "%s is TAINTED: %s was forced past %s; it does not say that it can do this, and its "
        "results may be wrong [%s]",
        record["slot"],
        winner.candidate.pin,
        "; ".join(map(str, winner.forced)),
        "pin-forced",
    )


def _check_fallback(
    record: dict[str, Any], winner: Judged, judged: list[Judged], fallback: str
) -> None:
    """A faster offer made for this device was refused: report it as `fallback` says."""
    elsewhere = {clause_id("device"), clause_id("arch")}
    passed_over = [
        item
        for item in judged
        if item.clauses
        and item.band > winner.band
        and not elsewhere & {clause.id for clause in item.clauses}
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
        raise CapabilityError(
            f"{text}; allow it with --fallback warn, or change the setting",
            id="fallback-refused",
            record=record,
        )
    if fallback == "warn":
        LOGGER.warning("%s", text)
