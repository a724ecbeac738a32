"""A trace: conversations of turns, whose prompts are runs of block ids instead of tokens.

An id names a block of `block_tokens` tokens and everything before it, so equal ids are an equal
prefix. Prompts become tokens only when they are submitted: a block's tokens follow from its id.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

TOKEN_BITS = 31
_MIX = np.uint64(0x9E3779B97F4A7C15)
_FILL_BIT = 1 << 62


@dataclass(frozen=True, slots=True)
class Turn:
    """One request.

    Args:
        prompt_tokens: length of the prompt; more than the blocks of `runs` hold, by less than one.
        output_tokens: tokens that are generated.
        service_s: how long the recorded engine took.
        pause_s: how long the client waited before this request, after the answer before it.
        runs: (first id, count) of consecutive ids, in prompt order.
    """

    prompt_tokens: int
    output_tokens: int
    service_s: float
    pause_s: float
    runs: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Turns one after another.

    Args:
        start_s: when its first request arrives; None: when a place is free.
        is_named: whether the engine is told that the turns belong together.
    """

    turns: tuple[Turn, ...]
    start_s: float | None = None
    is_named: bool = True


@dataclass(frozen=True, slots=True)
class Trace:
    """Conversations, in the order in which they start."""

    name: str
    block_tokens: int
    conversations: tuple[Conversation, ...]

    @property
    def num_requests(self) -> int:
        return sum(len(item.turns) for item in self.conversations)

    @property
    def unique_tokens(self) -> int:
        """Tokens of all different blocks."""
        ranges = sorted(
            (first, first + count)
            for item in self.conversations
            for turn in item.turns
            for first, count in turn.runs
        )
        unique = last = 0
        for first, end in ranges:
            unique += max(0, end - max(first, last))
            last = max(last, end)
        return unique * self.block_tokens

    def prompt_ids(self, turn: Turn, serial: int) -> NDArray[np.int32]:
        """Return the prompt's tokens; those after the last whole block follow from `serial`."""
        parts = [
            np.arange(first * self.block_tokens, (first + count) * self.block_tokens)
            for first, count in turn.runs
        ]
        missing = turn.prompt_tokens - sum(part.size for part in parts)
        start = _FILL_BIT + serial * self.block_tokens
        parts.append(np.arange(start, start + max(missing, 0)))
        return token_ids(np.concatenate(parts)[: turn.prompt_tokens])


def token_ids(positions: NDArray[np.int64]) -> NDArray[np.int32]:
    """Mix numbers into token ids that differ where the numbers do (almost always)."""
    mixed = positions.view(np.uint64) * _MIX
    return (mixed >> np.uint64(64 - TOKEN_BITS)).astype(np.int32)


class Arrivals:
    """Who asks next: conversations in a closed loop, at most `num_places` without a start time.

    Args:
        max_pause_s: longer pauses of a client are cut to this.
    """

    def __init__(self, trace: Trace, *, num_places: int, max_pause_s: float) -> None:
        self._conversations = trace.conversations
        self._max_pause_s = max_pause_s
        self._heap: list[tuple[float, int, int]] = []
        self._waiting = iter(
            [i for i, item in enumerate(trace.conversations) if item.start_s is None]
        )
        for number, item in enumerate(trace.conversations):
            if item.start_s is not None:
                self._push(item.start_s, number, 0)
        for place in range(min(num_places, len(trace.conversations))):
            self._start_next(place * 1.0)

    def __bool__(self) -> bool:
        return bool(self._heap)

    @property
    def next_s(self) -> float:
        """Time of the next arrival. REQUIRES: there is one."""
        return self._heap[0][0]

    def due(self, now_s: float) -> Iterator[tuple[float, int, int]]:
        """Yield (time, conversation, turn) of what has arrived by now."""
        while self._heap and self._heap[0][0] <= now_s:
            yield heapq.heappop(self._heap)

    def ended(self, conversation: int, turn: int, now_s: float) -> None:
        """A turn has been answered: its conversation goes on, or makes place for the next."""
        item = self._conversations[conversation]
        if turn + 1 < len(item.turns):
            pause_s = min(item.turns[turn + 1].pause_s, self._max_pause_s)
            self._push(now_s + pause_s, conversation, turn + 1)
        elif item.start_s is None:
            self._start_next(now_s + 1.0)

    def _start_next(self, at_s: float) -> None:
        number = next(self._waiting, None)
        if number is not None:
            self._push(at_s, number, 0)

    def _push(self, at_s: float, conversation: int, turn: int) -> None:
        heapq.heappush(self._heap, (at_s, conversation, turn))
