"""Token ids as int32 arrays, filled slice by slice: one long copy would hold the interpreter."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

SLICE_IDS = 1 << 14


def extend_ids(ids: array[int], new: Sequence[int]) -> None:
    """Append ids.

    Raises:
        OverflowError: one of them does not fit in 32 bits.
    """
    for start in range(0, len(new), SLICE_IDS):
        ids.extend(new[start : start + SLICE_IDS])
