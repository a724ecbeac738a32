"""Random chats whose turns share their beginnings, for tests of what the cache may never change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    Answers = Callable[[list[int], int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class Turn:
    """One prompt and its answer.

    Args:
        step: when it is sent, in steps.
        reuse_points: as a template would find them.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    step: int
    reuse_points: tuple[int, ...]


def make_tokens(rng: random.Random, count: int, below: int) -> list[int]:
    """Return random ids."""
    return [rng.randrange(below) for _ in range(count)]


def make_conversations(rng: random.Random, answer_of: Answers, *, below: int) -> list[Turn]:
    """Return the turns of a few chats, in the order in which they may be sent.

    Args:
        answer_of: what a prompt is answered with, in so many tokens: later turns go on from it.
        below: bound of token ids.
    """
    systems = [make_tokens(rng, rng.randint(0, 70), below) for _ in range(2)]
    turns = []
    for _ in range(rng.randint(2, 5)):
        system = rng.choice(systems)
        history, step = list(system), rng.randint(0, 20)
        for _ in range(rng.randint(1, 4)):
            start = len(history)
            history += make_tokens(rng, rng.randint(1, 50), below)
            if rng.random() < 0.2 and len(history) > 40:  # the client goes back to an earlier turn
                history = history[: rng.randint(20, len(history))]
            answer = tuple(answer_of(history, rng.randint(1, 14)))
            points = sorted({len(system), start, len(history) - rng.randint(0, 3)})
            points = [point for point in points if 0 < point < len(history)]
            turns.append(Turn(tuple(history), answer, step, tuple(points)))
            history += answer if rng.random() < 0.8 else answer[: len(answer) // 2]
            step += rng.randint(0, 30)
    return turns
