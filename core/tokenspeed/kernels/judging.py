"""Judges one candidate against a request: the clauses it fails, and everything the order compares.

Source of the order: `selection.py`. A request is traits without their neutral values.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.capability import (
    TRAITS,
    Clause,
    carried,
    satisfied,
    unmet_clauses,
)
from tokenspeed.contracts.kernel import Band, KernelOffer
from tokenspeed.errors import PluginError, plugin_code, told
from tokenspeed.kernels.rules import FAILED_WHEN_TIMED

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokenspeed.contracts.binding import RegisteredOffer

OBJECTIVES = ("latency", "throughput", "determinism")
Rank = tuple[float, float, float, float, float, float, str, str]


@dataclass(frozen=True, slots=True)
class Judged:
    """One candidate with everything the order compares.

    Args:
        clauses: unmet demands; none: it passes.
        forced: unmet demands that do not count, because the user forced them.
        score: of the offer's own function for the objective.
        num_preferences: satisfied wishes.
        specificity: declared traits that do not say "any".
        seconds: measured on this device for this request; None: not measured.
    """

    candidate: RegisteredOffer[Any]
    band: Band
    score: float
    num_preferences: int
    specificity: int
    clauses: tuple[Clause, ...]
    forced: tuple[Clause, ...] = ()
    seconds: float | None = None

    @property
    def passes(self) -> bool:
        """Say whether no clause is unmet."""
        return not self.clauses

    def rank(self, *, by_evidence: bool) -> Rank:
        """Return the sort key; smaller is better."""
        is_unmeasured = by_evidence and self.seconds is None
        seconds = self.seconds if by_evidence and self.seconds is not None else 0.0
        name = self.candidate.offer.name
        return (
            is_unmeasured,
            seconds,
            -self.band,
            -self.score,
            -self.num_preferences,
            -self.specificity,
            self.candidate.plugin_id,
            name,
        )


def make_request(traits: Mapping[str, object], objective: str) -> dict[str, object]:
    """Return the carried traits; the objective `determinism` is one of them.

    Raises:
        ValueError: a mistake of ours: an unknown trait or objective.
    """
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
    return carried(request)


def declared_traits(offer: Any) -> dict[str, tuple[object, ...]]:
    """Return what an offer declares; a kernel's two properties are traits too."""
    declared = dict(offer.requires)
    if isinstance(offer, KernelOffer):
        if offer.deterministic:
            declared.setdefault("deterministic", (True,))
        if offer.graph_safe:
            declared.setdefault("graph_safe", (True,))
    return declared


def judge(
    item: RegisteredOffer[Any],
    request: Mapping[str, object],
    *,
    objective: str,
    preferences: Mapping[str, object],
    forced: Iterable[str] = (),
    seconds: float | None = None,
    failure: str = "",
) -> Judged:
    """Judge one candidate.

    Args:
        forced: ids of clauses that do not count for this candidate.
        failure: why it could not be measured; "": it could, or nobody tried.
    """
    offer = item.offer
    declared = declared_traits(offer)
    unmet, skipped = unmet_clauses(request, declared), set(forced)
    if failure:
        unmet = (*unmet, Clause(FAILED_WHEN_TIMED, "a call that succeeds", (failure,)))
    clauses = tuple(clause for clause in unmet if clause.id not in skipped)
    return Judged(
        candidate=item,
        band=Band(offer.band) if isinstance(offer, KernelOffer) else Band[offer.band],
        score=0.0 if clauses else _score(item, request, objective),
        num_preferences=sum(
            satisfied(name, wish, declared.get(name)) for name, wish in preferences.items()
        ),
        specificity=sum("*" not in values for values in offer.requires.values()),
        clauses=clauses,
        forced=tuple(clause for clause in unmet if clause.id in skipped),
        seconds=None if seconds is None else round(seconds, 9),  # as the record shows it
    )


def _score(item: RegisteredOffer[Any], request: Mapping[str, object], objective: str) -> float:
    if not isinstance(item.offer, KernelOffer) or item.offer.score is None:
        return 0.0
    who = f"plugin {item.plugin_id} {item.plugin_version}: score of {item.offer.name}"
    try:
        with plugin_code():
            score = float(item.offer.score(request, objective))
    except Exception as error:
        raise PluginError(f"{who} raised {told(error)}", id="score-failed") from error
    if not math.isfinite(score):
        raise PluginError(f"{who} is {score}, a finite number is needed", id="score-failed")
    return score
