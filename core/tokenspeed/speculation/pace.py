"""How many drafts are worth verifying: as many as are more likely right than a token costs.

A step of n decode rows takes T, and one more token in it t. Without the draft it brings n tokens in
T; with one that is right with chance p it brings n + p in T + t. That is the better rate exactly if

    p > n t / T        the bar

The i-th draft of a row counts only if all before it are right, so its chance is a^i, with a the
chance of one. a is learnt from what speculators proposed and what came instead, whether the drafts
were verified or not: a request that does not copy is found out, and found again, without trying.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

FIRST_TOKEN_COST = 0.15
"""Cost of one more token relative to a step of one, until steps of different sizes were seen."""
COST_MEMORY = 0.98
"""What each step leaves of the weight of those before it."""
COST_TRUST = 8.0
"""Weight of the assumed cost beside the measured one, in squared tokens."""
MAX_OUTLIER = 4.0
"""A step is counted as at most so many times as long as expected: others use the machine too."""
BARS = (0.05, 0.9)
"""Lowest and highest bar: neither a draft for nothing, nor none at all that is nearly sure."""
OWN_MEMORY, ALL_MEMORY = 0.85, 0.99
"""What a tried draft leaves of the weight of earlier ones: of its request, and of all."""
OWN_TRUST = 1.0
"""Weight of all requests of the grade beside the trials of its own."""
MAX_CHANCE = 0.98


class StepCost:
    """Time of decode steps as a line over their tokens, fitted as they come."""

    def __init__(self) -> None:
        self._weight = self._tokens = self._seconds = self._squares = self._products = 0.0

    def observe(self, num_tokens: int, seconds: float) -> None:
        """Count a step that had only decode rows."""
        if self._weight:
            seconds = min(seconds, MAX_OUTLIER * self._predict(num_tokens))
        keep = COST_MEMORY
        self._weight = keep * self._weight + 1
        self._tokens = keep * self._tokens + num_tokens
        self._seconds = keep * self._seconds + seconds
        self._squares = keep * self._squares + num_tokens * num_tokens
        self._products = keep * self._products + num_tokens * seconds

    def bar(self, num_rows: int) -> float:
        """Return how likely a draft must be right to pay in a step of so many rows."""
        low, high = BARS
        if not self._weight:
            return min(high, FIRST_TOKEN_COST * num_rows / (1 + FIRST_TOKEN_COST * (num_rows - 1)))
        step = self._predict(num_rows)
        return min(high, max(low, num_rows * self._slope() / step)) if step > 0 else high

    def _predict(self, num_tokens: int) -> float:
        mean_tokens, mean = self._tokens / self._weight, self._seconds / self._weight
        return max(mean * 0.1, mean + self._slope() * (num_tokens - mean_tokens))

    def _slope(self) -> float:
        """Return seconds per token: least squares, drawn to the assumed cost."""
        tokens, seconds = self._tokens / self._weight, self._seconds / self._weight
        assumed = seconds * FIRST_TOKEN_COST / (1 + FIRST_TOKEN_COST * max(0.0, tokens - 1))
        spread = self._squares - self._tokens * tokens
        together = self._products - self._tokens * seconds
        slope = (together + COST_TRUST * assumed) / (spread + COST_TRUST)
        return max(slope, 0.01 * assumed)


class Chances:
    """How often drafts of each grade were right; decays, so that a change shows.

    Args:
        everyone: the same of all requests, which a new one starts from; None: this is it.
    """

    def __init__(self, num_grades: int, everyone: Chances | None = None) -> None:
        self._everyone = everyone
        self._memory = OWN_MEMORY if everyone is not None else ALL_MEMORY
        self._tries = [0.0] * num_grades
        self._hits = [0.0] * num_grades

    def learn(self, grade: int, drafts: Sequence[int], came: Sequence[int]) -> None:
        """Compare what was proposed with the tokens that came.

        Args:
            came: the next tokens of the request; as many as are known.
        """
        hits = 0
        most = min(len(drafts), len(came))
        while hits < most and drafts[hits] == came[hits]:
            hits += 1
        tries = min(hits + 1, most)
        keep = self._memory**tries
        self._tries[grade] = keep * self._tries[grade] + tries
        self._hits[grade] = keep * self._hits[grade] + hits
        if self._everyone is not None:
            self._everyone.learn(grade, drafts, came)

    def chance(self, grade: int) -> float:
        """Return how likely one draft of a grade is right if those before it are."""
        prior = 0.5 if self._everyone is None else self._everyone.chance(grade)
        return (self._hits[grade] + OWN_TRUST * prior) / (self._tries[grade] + OWN_TRUST)

    def worth(self, grade: int, bar: float, most: int) -> int:
        """Return how many drafts of a grade pay, at most `most`."""
        chance = min(self.chance(grade), MAX_CHANCE)
        if chance <= bar:
            return 0
        return min(most, int(math.log(bar) / math.log(chance)))
