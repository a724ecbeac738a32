"""How the host cuts a step into parts of equal work, for rows of any number of query tokens.

Items and parts are those of `attend`. Items are cut from all of the step's work, so that every
program has as much to do; or each row alone, so that a row's result is the same in every batch.
Legend: I items, P parts, G items that several parts share.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenspeed_sdk.portable.latent.attend import LEAST_TILES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenspeed_sdk import AttentionBatch
    from tokenspeed_sdk.portable.latent.tiles import Tiles

__all__ = ["ROW_PARTS", "Parts", "cut"]

ROW_PARTS = 16
"""Most parts of a row that is cut alone: a part's share of 64 heads x 512 is 128 KiB."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What the kernels read; see ITEM_FIELDS, PART_FIELDS and MERGE_FIELDS.

    Args:
        items: (I, 5) int32.
        parts: (P, 3) int32.
        merges: (G, 6) int32.
        shares: that a part can leave.
    """

    items: NDArray[np.int32]
    parts: NDArray[np.int32]
    merges: NDArray[np.int32]
    shares: int


def cut(batch: AttentionBatch, *, group: int, tiles: Tiles, most: int, alone: bool) -> Parts:
    """Cut a step.

    Args:
        group: query heads that share a cached row.
        most: parts, where items are cut from all.
        alone: each row is cut by its own length.
    """
    items, sizes, per_row = _items(batch, group, tiles)
    starts = np.cumsum(sizes) - sizes
    if alone:
        pieces = np.maximum(ROW_PARTS // per_row, 1)
        part_size = np.maximum(-(-sizes // pieces), LEAST_TILES)
        counts = -(-sizes // part_size)
        item_P = np.repeat(np.arange(len(sizes)), counts)
        piece_P = np.arange(len(item_P)) - np.repeat(np.cumsum(counts) - counts, counts)
        first_P = piece_P * part_size[item_P]
        left_P = np.minimum(part_size[item_P], sizes[item_P] - first_P)
        first_part, is_later = np.cumsum(counts) - counts, np.zeros(len(counts), dtype=np.bool_)
    else:
        total = int(sizes.sum())
        size = max(-(-total // most), LEAST_TILES)
        begin_P = np.arange(0, total, size)
        item_P = np.searchsorted(starts, begin_P, side="right") - 1
        first_P = begin_P - starts[item_P]
        left_P = np.minimum(size, total - begin_P)
        first_part = starts // size
        counts = (starts + sizes - 1) // size - first_part + 1
        is_later = (starts > first_part * size).astype(np.int64)
    shared = np.flatnonzero(counts > 1)
    columns = (items[:, 1], items[:, 2], items[:, 4], first_part, counts, is_later)
    return Parts(
        items,
        np.stack((item_P, first_P, left_P), -1).astype(np.int32),
        np.stack(columns, -1)[shared].astype(np.int32),
        1 if alone else 2,
    )


def _items(
    batch: AttentionBatch, group: int, tiles: Tiles
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]:
    """Return (items, tiles of cached tokens of each, items of each one's row)."""
    queries = np.diff(batch.query_start).astype(np.int64)
    per_row = -(-queries * group // tiles.rows)
    row_I = np.repeat(np.arange(len(queries)), per_row)
    first_row = (np.arange(len(row_I)) - np.repeat(np.cumsum(per_row) - per_row, per_row)) * (
        tiles.rows
    )
    last_token = np.minimum((first_row + tiles.rows - 1) // group, queries[row_I] - 1)
    context = batch.context_tokens.astype(np.int64)[row_I]
    sizes = -(-(context + 1 + last_token) // tiles.tokens)
    columns = (row_I, batch.query_start[:-1][row_I], queries[row_I], context, first_row)
    return np.stack(columns, -1).astype(np.int32), sizes, per_row[row_I]
