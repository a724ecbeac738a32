"""Makes agentic traces with the statistics of recorded coding sessions, for those without one.

Sizes and times are drawn from distributions fitted by eye to 355 sessions: turns, first prompt,
growth, answers, the pause of a tool call or of a person, sub-agents left out, and compactions,
after which a conversation goes on with a new, shorter history.
"""

from __future__ import annotations

import math
import random
from typing import Any

from tokenspeed.simulator.read import trace_of
from tokenspeed.simulator.trace import Trace

BLOCK_TOKENS = 64
SHARED_HEAD_TOKENS = 15_000
"""What a compaction keeps: system prompt and tools."""


def generate_agentic(num_sessions: int, seed: int, *, scale: float = 1.0) -> Trace:
    """Make a trace.

    Args:
        scale: of prompt sizes; below 1 for tests that shall be quick.
    """
    return trace_of(agentic_lines(num_sessions, seed, scale), f"agentic-seed-{seed}", "generated")


def agentic_lines(num_sessions: int, seed: int, scale: float = 1.0) -> list[dict[str, Any]]:
    """Return the lines of a trace file, one a session."""
    rng = random.Random(f"agentic/{seed}")
    return [
        {"id": f"s{number}", "block": BLOCK_TOKENS, "req": _Session(rng, scale).requests()}
        for number in range(num_sessions)
    ]


class _Session:
    """One session while it is drawn."""

    def __init__(self, rng: random.Random, scale: float) -> None:
        self._rng = rng
        self._scale = scale
        self._num_turns = min(400, max(3, round(self._spread(43, 1.2))))
        is_resumed = rng.random() < 0.35
        first = self._spread(130_000, 0.7) if is_resumed else self._spread(21_000, 0.35)
        self._prompt = self._scaled(first)
        self._limit = self._scaled(max(first * 1.2, self._spread(180_000, 0.35)))
        self._long_share = rng.betavariate(1.5, 4.0)
        self._tool_s = self._spread(7.5, 0.3)
        self._runs = [[1, self._prompt // BLOCK_TOKENS]]
        self._next_id = self._prompt // BLOCK_TOKENS + 2
        self._time_s = 0.0

    def requests(self) -> list[list[Any]]:
        """Draw all requests, as the file has them."""
        requests = []
        for turn in range(self._num_turns):
            output = max(20, round(self._spread(240, 0.85)))
            service_s = 3.0 + 0.0135 * output * self._spread(1.0, 0.2)
            pause_s = self._pause_s() if turn else 0.0
            self._time_s += pause_s
            requests.append(
                [
                    round(self._time_s, 3),
                    "",
                    self._prompt,
                    output,
                    round(service_s, 3),
                    round(pause_s, 3),
                    [list(run) for run in self._runs],
                ]
            )
            self._time_s += service_s
            self._grow(output)
        return requests

    def _pause_s(self) -> float:
        if self._rng.random() < self._long_share:
            return self._spread(75.0, 0.9)
        return max(1.0, self._spread(self._tool_s, 0.55))

    def _grow(self, output: int) -> None:
        self._prompt += self._scaled(output + self._spread(500, 1.1))
        if self._prompt > self._limit:
            self._compact()
        missing = self._prompt // BLOCK_TOKENS - sum(count for _, count in self._runs)
        if missing > 0:
            first, count = self._runs[-1]
            if first + count == self._next_id:
                self._runs[-1] = [first, count + missing]
            else:
                self._runs.append([self._next_id, missing])
            self._next_id += missing

    def _compact(self) -> None:
        head = self._scaled(SHARED_HEAD_TOKENS) // BLOCK_TOKENS
        self._runs = [[1, min(head, self._runs[0][1])]]
        self._prompt = self._scaled(self._spread(32_000, 0.4))
        self._next_id += 1

    def _scaled(self, tokens: float) -> int:
        return max(BLOCK_TOKENS, round(tokens * self._scale))

    def _spread(self, median: float, sigma: float) -> float:
        return self._rng.lognormvariate(math.log(median), sigma)
