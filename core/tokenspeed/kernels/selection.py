"""Chooses one offer among candidates, by rules that no install order can sway, and says why.

Order: pin, filter, band, score for the objective, specificity, then (plugin id, offer name).
"""

from __future__ import annotations

import difflib
import logging
import math
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.binding import Decision, RegisteredOffer
from tokenspeed.contracts.capability import TRAITS, unmet_clauses
from tokenspeed.contracts.kernel import Band, KernelOffer
from tokenspeed.errors import CapabilityError, PluginError
from tokenspeed.kernels.explain import one_line, refusal
from tokenspeed.kernels.record import AUTO, Judged, make_record, mark_winner
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

OBJECTIVES = ("latency", "throughput", "determinism")


def select(
    slot: str,
    candidates: Iterable[RegisteredOffer[Any]],
    traits: Mapping[str, object],
    *,
    pin: str = AUTO,
    fallback: str = "warn",
    objective: str = "latency",
    log_level: int = logging.INFO,
) -> Decision:
    """Choose the best candidate that can do what `traits` ask.

    Args:
        slot: slot or operator name, for the record and messages.
        candidates: in any order.
        traits: the request; neutral values do not count.
        pin: PLUGIN/NAME of the offer to use, or "auto".
        fallback: error, warn or allow, when a faster offer for this device had to be refused.
        objective: latency, throughput, or determinism (then only deterministic offers pass).
        log_level: of the line that says who won and why.
    Raises:
        CapabilityError: no candidate passes, the pinned one does not, or fallback is "error" and
            it is one; lists every candidate with its failed clauses.
        PluginError: an offer's score function failed.
    """
    request = _request(traits, objective)
    judged = sorted((_judge(item, request, objective) for item in candidates), key=_by_rank)
    passing = [item for item in judged if not item.clauses]
    record = make_record(slot, request, judged, pin, fallback, objective)
    if pin != AUTO:
        winner = _pinned(pin, judged, record)
    elif passing:
        winner = passing[0]
    else:
        raise CapabilityError(refusal(record), id="no-candidate")
    mark_winner(record, winner)
    if pin == AUTO:
        _check_fallback(record, winner, judged, fallback)
    LOGGER.log(log_level, "%s", one_line(record))
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


def _judge(item: RegisteredOffer[Any], request: Mapping[str, object], objective: str) -> Judged:
    offer = item.offer
    clauses = unmet_clauses(request, declared_traits(offer))
    band = Band(offer.band) if isinstance(offer, KernelOffer) else Band[offer.band]
    specificity = sum("*" not in values for values in offer.requires.values())
    score = 0.0 if clauses else _score(item, request, objective)
    return Judged(item, band, score, specificity, clauses)


def _score(item: RegisteredOffer[Any], request: Mapping[str, object], objective: str) -> float:
    if not isinstance(item.offer, KernelOffer) or item.offer.score is None:
        return 0.0
    try:
        score = float(item.offer.score(request, objective))
    except Exception as error:
        raise PluginError(
            f"plugin {item.plugin_id} {item.plugin_version}: score of {item.offer.name} raised "
            f"{type(error).__name__}: {error}",
            id="score-failed",
        ) from error
    if not math.isfinite(score):
        raise PluginError(
            f"plugin {item.plugin_id} {item.plugin_version}: score of {item.offer.name} is "
            f"{score}, a finite number is needed",
            id="score-failed",
        )
    return score


def _by_rank(item: Judged) -> tuple[float, float, int, str, str]:
    return item.rank


def _pinned(pin: str, judged: list[Judged], record: Mapping[str, Any]) -> Judged:
    by_pin = {item.candidate.pin: item for item in judged}
    found = by_pin.get(pin)
    if found is None:
        near = difflib.get_close_matches(pin, by_pin, n=1)
        hint = f"did you mean {near[0]!r}?" if near else "pins are written PLUGIN/NAME"
        known = ", ".join(sorted(by_pin)) or "none"
        raise CapabilityError(
            f"{record['slot']} is pinned to {pin!r}; offered: {known}; {hint}", id="pin-unknown"
        )
    if found.clauses:
        reasons = "; ".join(map(str, found.clauses))
        passing = [item.candidate.pin for item in judged if not item.clauses]
        raise CapabilityError(
            f"{record['slot']} is pinned to {pin}, which cannot do it: {reasons}; "
            f"offers that can: {', '.join(passing) or 'none'}; change the pin or the setting",
            id="pin-unsupported",
        )
    return found


def _check_fallback(
    record: dict[str, Any], winner: Judged, judged: list[Judged], fallback: str
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
        raise CapabilityError(
            f"{text}; allow it with --fallback warn, or change the setting", id="fallback-refused"
        )
    if fallback == "warn":
        LOGGER.warning("%s", text)
