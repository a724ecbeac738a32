"""Speculator slot: guesses the next tokens of running requests, so that a step can check several.

Every guess is verified by the target model before it counts (docs/speculation.md): a speculator can
waste time, and can never change an answer. It sees tokens, no tensors, and is called between steps
by the engine's thread, so that its time is the engine's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

MAX_DRAFTS = 64
"""Most drafts of one request in one step, whatever a speculator offers."""


@dataclass(frozen=True, slots=True)
class SpeculatorFacts:
    """What a speculator declares, once, when it is built.

    Args:
        num_grades: drafts have grades in [0, num_grades). Drafts of a grade are about equally often
            right: the engine counts how often, for each grade, and verifies as many as pay.
        observes: has the optional method `observe`.
    """

    num_grades: int = 1
    observes: bool = False


@dataclass(frozen=True, slots=True)
class Draft:
    """Guessed tokens of one request.

    Args:
        tokens: those that come after the last committed one, in order; ids of 0 or more.
        grade: see SpeculatorFacts.
    """

    tokens: Sequence[int]
    grade: int = 0


class Speculator(Protocol):
    """Required: facts, start, extend, propose, end. Optional: observe, declared in the facts.

    Offer: slot "speculator"; `load(max_drafts=..., max_running=..., vocab_size=...)`. One instance
    serves one engine. Whatever a method raises is counted and not passed on: after a few times the
    speculator is detached, and the engine goes on without (slot "degradable").
    """

    facts: SpeculatorFacts

    def start(self, request_id: int, token_ids: NDArray[np.int32]) -> None:
        """Learn of a request that begins to decode.

        Args:
            request_id: of no other request that was started and has not ended.
            token_ids: (N,) int32 host; prompt and outputs so far. Copy what is needed later.
        """
        ...

    def extend(self, request_id: int, token_ids: Sequence[int]) -> None:
        """Take the tokens that a step committed, in order: one or more."""
        ...

    def propose(self, wanted: Mapping[int, int]) -> Mapping[int, Draft]:
        """Guess what comes next.

        Args:
            wanted: request id -> most drafts, 1 or more; all of them are started.
        Returns:
            Drafts of those requests that it has any for.
        """
        ...

    def end(self, request_id: int) -> None:
        """Forget a request."""
        ...

    def observe(self, request_id: int, num_drafts: int, num_accepted: int) -> None:
        """Optional: learn how many of a request's drafts were verified, and how many were right.

        Comes before the step's `extend`, for rows that had drafts.
        """
        ...
