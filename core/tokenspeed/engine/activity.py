"""What the engine did lately: rates over the last seconds, waits of the last requests.

Told of every step; asked when somebody looks. Memory and cost per step do not grow.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.contracts.step import StepPlan

WINDOW_S = 10
"""Whole seconds that rates are taken over."""
MAX_DRAIN_S = 60
"""Longest time after which a client is told to try again."""
WAITS = 256
"""Requests whose time to the first token is remembered."""


class Activity:
    """Counters by second, and the last plan. Thread: the engine's only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._started_s = clock()
        self._seconds = [-1] * (WINDOW_S + 1)
        self._counts = [[0, 0, 0, 0] for _ in self._seconds]  # steps, computed, output, ends
        self._first_token_s: deque[float] = deque(maxlen=WAITS)
        self._plan = (0, 0, 0, 0)
        self._plan_s = self._model_s = self._step_s = 0.0
        self._planned_at = self._started_s

    @property
    def uptime_s(self) -> float:
        """Seconds since the engine began to serve."""
        return self._clock() - self._started_s

    def note_plan(self, plan: StepPlan, plan_s: float) -> None:
        """Keep the figures of a plan that is about to run; the plan itself may be reused."""
        self._plan = (plan.step_id, plan.num_rows, plan.num_decode_rows, plan.num_tokens)
        self._plan_s = plan_s
        self._planned_at = self._clock()

    def note_step(self, *, computed_tokens: int, output_tokens: int) -> None:
        """Count a step that was committed."""
        counts = self._counts_now()
        counts[0] += 1
        counts[1] += computed_tokens
        counts[2] += output_tokens

    def note_end(self) -> None:
        """Count a request that ended, however it did."""
        self._counts_now()[3] += 1

    def note_times(self, *, model_s: float, step_s: float) -> None:
        """Keep the times of the turn that committed the last step."""
        self._model_s, self._step_s = model_s, step_s

    def note_first_token(self, wait_s: float) -> None:
        """Count a request's time from its arrival to its first token."""
        self._first_token_s.append(wait_s)

    def rates(self) -> dict[str, Any]:
        """Return what happened per second, and how long first tokens took."""
        window_s, (steps, computed, output, ends) = self._means()
        waits = sorted(self._first_token_s)
        return {
            "window_s": window_s,
            "steps_s": round(steps, 1),
            "computed_tok_s": round(computed, 1),
            "output_tok_s": round(output, 1),
            "ended_s": round(ends, 1),
            "ttft_ms_p50": _ms(waits, 0.50),
            "ttft_ms_p99": _ms(waits, 0.99),
            "ttft_requests": len(waits),
        }

    def drain_s(self, num_waiting: int, *, waited_s: float) -> int:
        """Return after how many seconds so many waiting requests may have had their turn.

        Args:
            waited_s: how long the one that asks has waited. While nothing ends, it is expected to
                take as long again.
        """
        _, (_, _, _, ends) = self._means()
        seconds = num_waiting / ends if ends else waited_s
        return max(1, min(MAX_DRAIN_S, round(seconds)))

    def last_plan(self) -> dict[str, Any] | None:
        """Return the newest plan's figures; None before the first."""
        step_id, rows, decode_rows, tokens = self._plan
        if not step_id:
            return None
        return {
            "step_id": step_id,
            "age_s": round(self._clock() - self._planned_at, 3),
            "rows": rows,
            "decode_rows": decode_rows,
            "prefill_rows": rows - decode_rows,
            "tokens": tokens,
            "plan_us": round(self._plan_s * 1e6, 1),
            "model_us": round(self._model_s * 1e6, 1),
            "step_us": round(self._step_s * 1e6, 1),
        }

    def _counts_now(self) -> list[int]:
        second = int(self._clock())
        index = second % len(self._seconds)
        if self._seconds[index] != second:
            self._seconds[index] = second
            self._counts[index] = [0, 0, 0, 0]
        return self._counts[index]

    def _means(self) -> tuple[int, list[float]]:
        """Return the window's length, and what was counted in it, per second."""
        now = int(self._clock())
        window_s = max(1, min(WINDOW_S, now - int(self._started_s)))
        recent = [
            counts
            for second, counts in zip(self._seconds, self._counts, strict=True)
            if now - window_s <= second < now
        ]
        return window_s, [sum(item[i] for item in recent) / window_s for i in range(4)]


def _ms(sorted_s: list[float], share: float) -> float | None:
    if not sorted_s:
        return None
    return round(sorted_s[min(len(sorted_s) - 1, int(share * len(sorted_s)))] * 1e3, 2)
