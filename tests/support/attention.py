"""Factories of paged caches and step batches for attention backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tokenspeed_sdk import AttentionBatch, DecodeRows, KVView


@dataclass(frozen=True, slots=True)
class Row:
    """One row of a step: its cached tokens, its query tokens, and its blocks."""

    context: int
    queries: int
    blocks: tuple[int, ...]


def make_batch(
    rows: Sequence[Row], *, block_tokens: int, spare: int = 1, window: int = 0
) -> AttentionBatch:
    """Lay rows out as the executor does: decodes first, tables padded with the sentinel."""
    width = max(len(row.blocks) for row in rows) + spare
    tables = np.zeros((len(rows), width), np.int32)
    for index, row in enumerate(rows):
        tables[index, : len(row.blocks)] = row.blocks
    positions = [np.arange(row.context, row.context + row.queries) for row in rows]
    return AttentionBatch(
        query_start=np.cumsum([0] + [row.queries for row in rows], dtype=np.int32),
        context_tokens=np.array([row.context for row in rows], np.int32),
        num_decode_rows=sum(row.queries == 1 for row in rows),
        block_tables=tables,
        block_tokens=block_tokens,
        positions_T=torch.from_numpy(np.concatenate(positions).astype(np.int64)),
        window=window,
    )


def make_rows(shapes: Sequence[tuple[int, int]], *, block_tokens: int, seed: int) -> list[Row]:
    """Give (context, queries) shapes scattered blocks of their own; decodes first."""
    counts = [-(-(context + queries) // block_tokens) for context, queries in shapes]
    ids = np.random.default_rng(seed).permutation(sum(counts)) + 1
    ends = np.cumsum(counts)
    rows = [
        Row(context, queries, tuple(ids[end - count : end].tolist()))
        for (context, queries), count, end in zip(shapes, counts, ends, strict=True)
    ]
    return sorted(rows, key=lambda row: row.queries != 1)


def make_kv(
    num_blocks: int, *, kv_heads: int, head_dim: int, block_tokens: int, dtype: torch.dtype
) -> KVView:
    """Make a layer's strided view of an arena of three layers, filled with noise."""
    random = torch.Generator().manual_seed(0)
    shape = (num_blocks, 3, 2, kv_heads, block_tokens, head_dim)
    arena = torch.randn(shape, generator=random).to(dtype)
    return KVView(arena[:, 1, 0], arena[:, 1, 1])


def copy_kv(kv: KVView, dtype: torch.dtype) -> KVView:
    """Copy a view."""
    return KVView(kv.k.to(dtype, copy=True), kv.v.to(dtype, copy=True))


def poison_unseen(kv: KVView, batch: AttentionBatch) -> None:
    """Fill every cell that no query of the batch sees with NaN; the sentinel's cells too."""
    seen = torch.zeros(kv.k.shape[0], kv.k.shape[2], dtype=torch.bool)
    contexts, starts = batch.context_tokens.tolist(), batch.query_start.tolist()
    for row, context in enumerate(contexts):
        last = context + starts[row + 1] - starts[row]
        first = max(0, context + 1 - batch.window) if batch.window else 0
        places = np.arange(first, last)
        blocks = batch.block_tables[row, places // batch.block_tokens]
        seen[blocks, places % batch.block_tokens] = True
    for cache in (kv.k, kv.v):
        cache.masked_fill_(~seen[:, None, :, None], torch.nan)


def decode_rows_of(batch: AttentionBatch, *, padding: int = 0, seed: int = 0) -> DecodeRows:
    """Describe a batch of decode rows on the device: scattered lines, then padded rows.

    Entries behind a row's last, and wholly before its window, name blocks that do not exist.
    """
    rows, (_, width) = len(batch.context_tokens), batch.block_tables.shape
    lines = np.random.default_rng(seed).permutation(rows + 2)[:rows]
    tables = np.full((rows + 3, width), 1 << 30, np.int32)
    lengths = np.concatenate([batch.context_tokens + 1, np.ones(padding, np.int32)])
    for row, line in enumerate(lines):
        first = max(0, lengths[row] - batch.window) // batch.block_tokens if batch.window else 0
        stop = -(-lengths[row] // batch.block_tokens)
        tables[line, first:stop] = batch.block_tables[row, first:stop]
    tables[rows + 2] = 0
    slots = np.concatenate([lines, np.full(padding, rows + 2)])
    return DecodeRows(
        slots_R=torch.from_numpy(slots.astype(np.int32)),
        lengths_R=torch.from_numpy(lengths.astype(np.int32)),
        positions_R=torch.from_numpy(lengths.astype(np.int64) - 1),
        tables=torch.from_numpy(tables),
        entry_tokens=batch.block_tokens,
        window=batch.window,
    )
