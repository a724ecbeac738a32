"""What paged backends plan from a step's rows: cells to be written, and chunks to be attended.

Legend: T query tokens, R rows.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from tokenspeed_reference.attention_prefill import Chunk, make_mask
from tokenspeed_sdk import AttentionBatch


def written_cells(batch: AttentionBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (T,) block and offset in it where each token of the step is written."""
    if batch.num_decode_rows == len(batch.context_tokens):
        rows = np.arange(batch.num_decode_rows)
    else:
        rows = np.repeat(np.arange(len(batch.context_tokens)), np.diff(batch.query_start))
    starts = batch.context_tokens - batch.query_start[:-1]
    positions = np.arange(len(rows)) + starts[rows]
    blocks = batch.block_tables[rows, positions // batch.block_tokens]
    return blocks.astype(np.int64), positions % batch.block_tokens


def first_seen(batch: AttentionBatch) -> NDArray[np.int32]:
    """Return (R,) the first position that each row's first query token sees."""
    if not batch.window:
        return np.zeros_like(batch.context_tokens)
    return np.maximum(batch.context_tokens + 1 - batch.window, 0)


def plan_chunks(
    batch: AttentionBatch, dtype: torch.dtype, device: torch.device, *, first_row: int = 0
) -> tuple[Chunk, ...]:
    """Plan the rows from `first_row` on; blocks wholly before the window are left out."""
    starts, contexts = batch.query_start.tolist(), batch.context_tokens.tolist()
    firsts = first_seen(batch).tolist()
    chunks = []
    for row in range(first_row, len(contexts)):
        query = slice(starts[row], starts[row + 1])
        num_tokens = query.stop - query.start
        last = contexts[row] + num_tokens
        skipped, first_key = divmod(firsts[row], batch.block_tokens)
        num_keys = last - firsts[row]
        mask: torch.Tensor | None = None
        if num_keys > num_tokens > 1 or 0 < batch.window < num_keys:
            mask = make_mask(num_tokens, num_keys, batch.window, dtype, device)
        blocks = batch.block_tables[row, skipped : -(-last // batch.block_tokens)]
        chunks.append(Chunk(query, first_key, num_keys, tuple(blocks.tolist()), mask))
    return tuple(chunks)
