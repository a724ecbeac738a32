"""What a replay was like: counters while it runs, figures at its end."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Results of one replay; times in ms, rates per second of virtual time.

    Args:
        hit_rate: prompt tokens taken from the cache / prompt tokens.
        ttft_ms_p50, ttft_ms_p99: arrival to first token.
        tps_per_user_p50, tps_per_user_p1: output tokens per second of a stream after its first
            token; p1 is what all but one in a hundred have at least.
        output_tok_s, prompt_tok_s: of all streams together.
        utilisation: share of the time in which a step ran.
        mean_running, mean_waiting, max_waiting: requests, over the steps.
        refused: requests that could never fit.
    """

    trace: str
    pool_tokens: int
    places: int
    requests: int
    refused: int
    steps: int
    duration_s: float
    hit_rate: float
    ttft_ms_p50: float
    ttft_ms_p99: float
    tps_per_user_p50: float
    tps_per_user_p1: float
    output_tok_s: float
    prompt_tok_s: float
    utilisation: float
    mean_running: float
    mean_waiting: float
    max_waiting: int
    retractions: int
    evictions: int

    def as_dict(self) -> dict[str, float | int | str | None]:
        """Return the figures for JSON; what was not measured is None."""
        return {
            key: None if isinstance(value, float) and np.isnan(value) else value
            for key, value in dataclasses.asdict(self).items()
        }


@dataclass(slots=True)
class Tally:
    """Counts while a replay runs."""

    requests: int = 0
    refused: int = 0
    steps: int = 0
    busy_us: float = 0.0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    running: int = 0
    waiting: int = 0
    max_waiting: int = 0
    ttft_s: list[float] = field(default_factory=list)
    stream_tps: list[float] = field(default_factory=list)

    def note_step(self, time_us: float, running: int, waiting: int) -> None:
        """Count a step."""
        self.steps += 1
        self.busy_us += time_us
        self.running += running
        self.waiting += waiting
        self.max_waiting = max(self.max_waiting, waiting)

    def note_end(self, first_s: float, end_s: float, output_tokens: int) -> None:
        """Count a stream that ended; one token has no rate."""
        if output_tokens > 1 and end_s > first_s:
            self.stream_tps.append((output_tokens - 1) / (end_s - first_s))


def percentile(values: list[float], q: float) -> float:
    """Return the q-th percentile, NaN of nothing."""
    return float(np.percentile(values, q)) if values else float("nan")
