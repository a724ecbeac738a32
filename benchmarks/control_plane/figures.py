"""Clock, percentiles and token streams that every workload shares.

CP_CLOCK=cpu (default) is CPU time of the calling thread, so that a busy host does not show up as
tail latency (a system call, about 0.3 us a reading); CP_CLOCK=wall is the wall clock.
"""

from __future__ import annotations

import gc
import math
import os
import random
import time
from collections.abc import Sequence

SEED = 20261129
VOCAB = 150_000

clock = time.perf_counter if os.environ.get("CP_CLOCK") == "wall" else time.thread_time


def percentile(values: Sequence[float], q: float) -> float:
    """Return the value at rank q of the sorted values, NaN for none."""
    ordered = sorted(values)
    if not ordered:
        return math.nan
    return ordered[min(len(ordered) - 1, max(0, round(q * (len(ordered) - 1))))]


def summary(seconds: Sequence[float]) -> dict[str, float | None]:
    """Count, mean and percentiles, in microseconds."""
    return {
        "n": len(seconds),
        "mean": round(sum(seconds) / max(1, len(seconds)) * 1e6, 2),
        "p50": round(percentile(seconds, 0.5) * 1e6, 2),
        "p90": round(percentile(seconds, 0.9) * 1e6, 2),
        "p99": round(percentile(seconds, 0.99) * 1e6, 2),
        "max": round(max(seconds) * 1e6, 2) if seconds else None,
    }


def random_tokens(rng: random.Random, count: int) -> list[int]:
    """Pseudo-random token ids; cheap and deterministic."""
    return [bits % VOCAB for bits in memoryview(rng.randbytes(4 * count)).cast("I")]


def freeze() -> None:
    """Keep the collector off what exists: it would be timed as the engine's."""
    gc.collect()
    gc.freeze()
