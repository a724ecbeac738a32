"""Which decode rows have caches that begin with the same blocks, found in the host's block tables.

Rows are sorted by their blocks, so that those with much in common stand side by side, and cut into
tiles such that the most tokens are read once in place of once a row. Blocks are shared by handle:
equal ids are equal content. Legend: R rows, M blocks of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from tokenspeed.contracts.attention import SHARED_TILE_ROWS, SharedPrefixes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tokenspeed.contracts.step import StepPlan
    from tokenspeed.executor.tables import GroupTables

    Upload = Callable[..., tuple[torch.Tensor, ...]]

MIN_SHARED_TOKENS = 256
"""Shorter beginnings are read by each row on its own.

A tile gives each of its rows one more partial result to be written and merged: some 8 KiB a kv head
of 128 numbers with 8 queries, as much as the keys and values of 16 tokens. It also takes a unit of
the device away from the rest of the rows for as long as it reads; from about as many tokens on as
such a unit reads in one go, that is paid for by two rows already.
"""


@dataclass(frozen=True, slots=True)
class Tile:
    """Rows that share the first `tokens` tokens of their caches."""

    rows: tuple[int, ...]
    tokens: int


def find_tiles(
    blocks_RM: NDArray[np.int32], lengths_R: NDArray[np.int32], block_tokens: int
) -> list[Tile]:
    """Return the tiles that save the most reads, none of them of rows that share little.

    Args:
        blocks_RM: block ids; entries behind a row's last are anything.
        lengths_R: tokens that each row attends to; what is shared is less than each of them.
    """
    # The last token of a row is written in this step, so its block is the row's own.
    whole_R = np.minimum((lengths_R - 1) // block_tokens, blocks_RM.shape[1]).tolist()
    least = -(-MIN_SHARED_TOKENS // block_tokens)
    rows = [row for row, count in enumerate(whole_R) if count >= least]
    keys = {row: blocks_RM[row, : whole_R[row]].astype(">i4").tobytes() for row in rows}
    rows.sort(key=keys.__getitem__)
    tiles: list[Tile] = []
    while True:
        common = [
            _num_equal(blocks_RM[a, : min(whole_R[a], whole_R[b])], blocks_RM[b])
            for a, b in pairwise(rows)
        ]
        cuts = _best_cuts(common, least)
        if not cuts:
            return tiles
        tiles += [
            Tile(tuple(rows[start:stop]), min(common[start : stop - 1]) * block_tokens)
            for start, stop in cuts
        ]
        # Rows on both sides of a tile are neighbours now.
        covered = {row for tile in tiles for row in tile.rows}
        rows = [row for row in rows if row not in covered]


def _num_equal(first: NDArray[np.int32], second: NDArray[np.int32]) -> int:
    """Return how many leading elements are equal."""
    different = first != second[: len(first)]
    place = int(different.argmax()) if len(different) else 0
    return place if len(different) and different[place] else len(different)


def _best_cuts(common: list[int], least: int) -> list[tuple[int, int]]:
    """Return [start, stop) of the runs that save the most.

    Args:
        common: blocks that each of the sorted rows has in common with the next.
    """
    num_rows = len(common) + 1
    saved = [0] * (num_rows + 1)
    starts = list(range(-1, num_rows))  # of the run that ends before a place; one row is no run
    for stop in range(1, num_rows + 1):
        saved[stop] = saved[stop - 1]
        shared = 1 << 30
        for start in range(stop - 2, max(stop - SHARED_TILE_ROWS, 0) - 1, -1):
            shared = min(shared, common[start])
            if shared < least:
                break
            worth = saved[start] + (stop - start - 1) * shared
            if worth > saved[stop]:
                saved[stop], starts[stop] = worth, start
    cuts, stop = [], num_rows
    while stop > 0:
        if stop - starts[stop] > 1:
            cuts.append((starts[stop], stop))
        stop = starts[stop]
    return cuts[::-1]


class SharedRows:
    """The tiles of one cache group's decode rows, on the device, kept up to date.

    Looked for when the rows are others or a part that they share was written; blocks that rows take
    at their ends are their own and change nothing.

    Args:
        tables: host tables of the group, which has no window.
        max_rows: of a step.
        upload: brings an array to the device.
    """

    def __init__(
        self,
        tables: GroupTables,
        *,
        group: int,
        block_tokens: int,
        max_rows: int,
        upload: Upload,
        device: torch.device,
    ) -> None:
        self._tables = tables
        self._group = group
        self._block_tokens = block_tokens
        self._upload = upload
        self._packed = torch.zeros(_size(max_rows), dtype=torch.int32, device=device)
        self._rows = b""
        self._covered_S = np.zeros(tables.num_slots, dtype=np.int32)

    def of(self, num_rows: int) -> SharedPrefixes:
        """Return the same memory for good: that of steps of so many rows, padded ones included."""
        order_R, tiles, tokens_R = self._packed[: _size(num_rows)].split_with_sizes(
            _sizes(num_rows)
        )
        return SharedPrefixes(order_R, tiles.view(-1, 3), tokens_R)

    def follow(self, plan: StepPlan) -> None:
        """Learn what a plan changes; each plan, those whose rows are not looked at too."""
        updates = plan.block_updates
        own = updates[updates[:, 1] == self._group]
        is_changed = (own[:, 2] < self._covered_S[own[:, 0]]).any()
        if is_changed or len(plan.admitted):
            self._forget()

    def update(
        self, slots_R: NDArray[np.int32], lengths_R: NDArray[np.int32], num_rows: int
    ) -> None:
        """Make the tiles those of a step.

        Args:
            slots_R, lengths_R: of the rows that are used.
            num_rows: with the padded ones, which are in no tile.
        """
        rows = slots_R.tobytes()
        if rows == self._rows:
            return
        num_blocks = -(-int(lengths_R.max()) // self._block_tokens)
        blocks_RM = self._tables.block_rows(slots_R, num_blocks)
        tiles = find_tiles(blocks_RM, lengths_R, self._block_tokens)
        (packed,) = self._upload(_packed(tiles, num_rows))
        self._packed[: len(packed)].copy_(packed)
        self._forget()
        self._rows = rows
        for tile in tiles:
            self._covered_S[slots_R[list(tile.rows)]] = tile.tokens // self._block_tokens

    def _forget(self) -> None:
        self._rows = b""
        self._covered_S[:] = 0


def _sizes(num_rows: int) -> list[int]:
    """Return the elements of order, tiles and tokens: a tile has two rows at least."""
    return [num_rows, num_rows // 2 * 3, num_rows]


def _size(num_rows: int) -> int:
    return sum(_sizes(num_rows))


def _packed(tiles: list[Tile], num_rows: int) -> NDArray[np.int32]:
    """Return the arrays of SharedPrefixes, one behind the other."""
    in_tiles = [row for tile in tiles for row in tile.rows]
    others = sorted(set(range(num_rows)) - set(in_tiles))
    packed = np.zeros(_size(num_rows), dtype=np.int32)
    order_R, tile_rows, tokens_R = np.split(packed, np.cumsum(_sizes(num_rows))[:-1])
    order_R[:] = in_tiles + others
    start = 0
    for place, tile in enumerate(tiles):
        tile_rows[3 * place : 3 * place + 3] = start, len(tile.rows), tile.tokens
        tokens_R[list(tile.rows)] = tile.tokens
        start += len(tile.rows)
    return packed
