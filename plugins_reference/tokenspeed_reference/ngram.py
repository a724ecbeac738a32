"""Speculator: copies what came after the last tokens where they stood before in the same request.

Agents repeat their context: files that they edit, names, tool calls. The longest recent match is
found natively in bounded time (`native/ngram_index.h`). Source: Prompt Lookup Decoding, Saxena
2023; bounded hash chains over two lengths, and grades by the length of the match, are ours.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import torch  # noqa: F401  (both must find one OpenMP runtime in the process, and torch brings its own)

from tokenspeed_reference import _cpu
from tokenspeed_sdk import Draft, SpeculatorFacts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

GRADES = (4, 6, 9, 16, 32)
"""Lengths of a match from which on drafts are of the next grade: they are right more often."""


class NgramSpeculator:
    """Speculator of prompt lookup; an index a request, dropped with it."""

    facts = SpeculatorFacts(num_grades=len(GRADES) + 1)

    def __init__(self, *, max_drafts: int, max_running: int, vocab_size: int) -> None:
        self._indexes: dict[int, _cpu.NgramIndex] = {}

    def start(self, request_id: int, token_ids: NDArray[np.int32]) -> None:
        """Index a request's tokens."""
        self._indexes[request_id] = _cpu.NgramIndex(token_ids)

    def extend(self, request_id: int, token_ids: Sequence[int]) -> None:
        """Index new tokens."""
        self._indexes[request_id].extend(token_ids)

    def propose(self, wanted: Mapping[int, int]) -> dict[int, Draft]:
        """Copy what came after the longest match."""
        drafts = {}
        for request_id, count in wanted.items():
            index = self._indexes[request_id]
            matched = index.match()
            if matched:
                grade = bisect_right(GRADES, matched)
                drafts[request_id] = Draft(index.draft(count), grade)
        return drafts

    def end(self, request_id: int) -> None:
        """Drop a request's index."""
        self._indexes.pop(request_id, None)
