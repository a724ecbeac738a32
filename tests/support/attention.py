"""Factories of paged caches and step batches for attention backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tokenspeed_sdk import AttentionBatch, KVView


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
