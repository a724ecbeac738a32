"""What a trace and a simulated engine may hold: beyond it is a mistake, not a load."""

from __future__ import annotations

import math
from typing import Any

MAX_TOKENS = 1 << 24
"""Of one prompt or answer."""

MAX_BLOCK_TOKENS = 1 << 16
MAX_ID = 1 << 40
MAX_POOL_BLOCKS = 1 << 30
MAX_TIME_S = 1e9
"""About thirty years; more would not fit into the scheduler's microseconds."""


def whole_number(name: str, value: Any, low: int, high: int) -> int:
    """Return a whole number of a trace.

    Raises:
        ValueError: it is none, or out of range.
    """
    if type(value) is not int or not low <= value <= high:
        raise ValueError(f"{name} is {_shown(value)}, allowed are whole numbers {low} to {high}")
    return value


def seconds(name: str, value: Any, default: float = 0.0, *, unit_s: float = 1.0) -> float:
    """Return a time of a trace in seconds; null is the default.

    Raises:
        ValueError: it is no number, or out of range.
    """
    if value is None:
        return default
    is_number = type(value) in (int, float) and math.isfinite(value)
    if not is_number or not 0 <= value * unit_s <= MAX_TIME_S:
        raise ValueError(f"{name} is {_shown(value)}, allowed are 0 to {MAX_TIME_S / unit_s:.0f}")
    return float(value) * unit_s


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}..."
