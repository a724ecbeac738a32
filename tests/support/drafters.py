"""Speculators for tests: one that knows the answers and errs on purpose, and one that fails."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from tokenspeed.contracts.speculator import Draft, SpeculatorFacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray


class KnowingSpeculator:
    """Drafts what it was told will come, with a wrong token here and there.

    Args:
        answers: what follows each prompt; requests of equal prompts must get equal answers.
        wrong_share: how many drafts are replaced by a random token.
    """

    facts = SpeculatorFacts(num_grades=2, observes=True)

    def __init__(
        self,
        answers: Mapping[tuple[int, ...], Sequence[int]],
        seed: int,
        *,
        wrong_share: float = 0.2,
        vocab_size: int = 64,
    ) -> None:
        self._answers = answers
        self._random = random.Random(seed)
        self._wrong_share = wrong_share
        self._vocab_size = vocab_size
        self._known: dict[int, list[int]] = {}
        self.observed: list[tuple[int, int]] = []

    def start(self, request_id: int, token_ids: NDArray[np.int32]) -> None:
        """Note what the request has."""
        assert request_id not in self._known
        self._known[request_id] = token_ids.tolist()

    def extend(self, request_id: int, token_ids: Sequence[int]) -> None:
        """Note what came."""
        self._known[request_id] += token_ids

    def propose(self, wanted: Mapping[int, int]) -> dict[int, Draft]:
        """Draft up to as many tokens as are wanted."""
        return {
            key: Draft(self._draft(key, self._random.randint(0, most)), self._random.randrange(2))
            for key, most in wanted.items()
        }

    def end(self, request_id: int) -> None:
        """Forget a request."""
        del self._known[request_id]

    def observe(self, request_id: int, num_drafts: int, num_accepted: int) -> None:
        """Note a verification."""
        assert request_id in self._known
        self.observed.append((num_drafts, num_accepted))

    def _draft(self, key: int, count: int) -> list[int]:
        known = self._known[key]
        for length in range(len(known), 0, -1):
            answer = self._answers.get(tuple(known[:length]))
            if answer is not None:
                done = len(known) - length
                return [self._spoilt(token) for token in answer[done : done + count]]
        return []

    def _spoilt(self, token: int) -> int:
        is_wrong = self._random.random() < self._wrong_share
        return self._random.randrange(self._vocab_size) if is_wrong else token


class FailingSpeculator(KnowingSpeculator):
    """Drafts rightly, and raises from one call of `propose` on.

    Args:
        first_failure: number of that call, from 1.
    """

    def __init__(
        self, answers: Mapping[tuple[int, ...], Sequence[int]], first_failure: int
    ) -> None:
        super().__init__(answers, 1, wrong_share=0.0)
        self._calls_left = first_failure

    def propose(self, wanted: Mapping[int, int]) -> dict[int, Draft]:
        """Draft, or raise."""
        self._calls_left -= 1
        if self._calls_left <= 0:
            raise RuntimeError("the drafter is out of ideas")
        return super().propose(wanted)
