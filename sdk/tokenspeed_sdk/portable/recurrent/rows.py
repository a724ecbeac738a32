"""How the rows of a step are cut: rows of one token together, longer ones into chunks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["CHUNK_TOKENS", "Cut", "cut_rows"]

CHUNK_TOKENS = 64
REMEMBERED = 4
"""Cuts: every layer of a step asks for the same one, or for those of its stages."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Arrays on the device, int32.

    Args:
        starts: (R + 1,) where the rows start.
        singles: (S, 2) row and token of each row of one token.
        chunks: (C, 3) row, first token and number of tokens of each chunk of the longer rows.
        longer: (L, 3) row, first chunk and number of chunks of each longer row.
    """

    starts: torch.Tensor
    singles: torch.Tensor
    chunks: torch.Tensor
    longer: torch.Tensor


def cut_rows(query_start: NDArray[np.int32], num_tokens: int, device: torch.device) -> Cut | None:
    """Return how rows of one token at least are cut; None: each has one."""
    if len(query_start) - 1 == num_tokens:
        return None
    return _cut(query_start.astype(np.int32).tobytes(), device)


@lru_cache(maxsize=REMEMBERED)
def _cut(query_start_bytes: bytes, device: torch.device) -> Cut:
    """Cut by content: an array that is filled anew for each step is no step that was seen."""
    starts = np.frombuffer(query_start_bytes, np.int32)
    lengths = np.diff(starts)
    single, longer = np.flatnonzero(lengths == 1), np.flatnonzero(lengths > 1)
    counts = -(-lengths[longer] // CHUNK_TOKENS)
    before = np.cumsum(counts) - counts
    row_C = np.repeat(longer, counts)
    first_C = (np.arange(len(row_C)) - np.repeat(before, counts)) * CHUNK_TOKENS
    size_C = np.minimum(lengths[row_C] - first_C, CHUNK_TOKENS)
    parts = (
        starts,
        np.stack((single, starts[single]), -1),
        np.stack((row_C, starts[row_C] + first_C, size_C), -1),
        np.stack((longer, before, counts), -1),
    )
    flat = np.concatenate([part.ravel() for part in parts]).astype(np.int32)
    sent = torch.from_numpy(flat).to(device, non_blocking=True)
    pieces = sent.split_with_sizes([part.size for part in parts])
    return Cut(*(piece.view(part.shape) for piece, part in zip(pieces, parts, strict=True)))
