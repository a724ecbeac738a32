"""Tiles are made of rows whose caches begin with the same blocks, and save what can be saved."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.plans import Row, make_plan

from tokenspeed.contracts.attention import SHARED_TILE_ROWS
from tokenspeed.executor import shared_prefixes
from tokenspeed.executor.shared_prefixes import MIN_SHARED_TOKENS, SharedRows, find_tiles
from tokenspeed.executor.tables import GroupTables

BLOCK_TOKENS = 128
DIRT = -5


def table_of(rows: list[list[int]], width: int) -> np.ndarray[tuple[int, int], np.dtype[np.int32]]:
    table = np.full((len(rows), width), DIRT, dtype=np.int32)
    for row, blocks in enumerate(rows):
        table[row, : len(blocks)] = blocks
    return table


@st.composite
def conversations(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Rows that branch off each other's blocks, and their lengths in tokens."""
    rows: list[list[int]] = []
    fresh = iter(range(1, 10_000))
    for _ in range(draw(st.integers(1, 24))):
        kept: list[int] = []
        if rows and draw(st.booleans()):
            parent = draw(st.sampled_from(rows))
            kept = parent[: draw(st.integers(0, len(parent)))]
        rows.append(kept + [next(fresh) for _ in range(draw(st.integers(1, 4)))])
    lengths = [
        (len(blocks) - 1) * BLOCK_TOKENS + draw(st.integers(1, BLOCK_TOKENS)) for blocks in rows
    ]
    return rows, lengths


@given(conversations())
@settings(deadline=None, max_examples=60)
def test_every_tile_holds(drawn: tuple[list[list[int]], list[int]]) -> None:
    rows, lengths = drawn
    tiles = find_tiles(table_of(rows, 40), np.array(lengths, np.int32), BLOCK_TOKENS)
    seen: set[int] = set()
    for tile in tiles:
        assert 2 <= len(tile.rows) <= SHARED_TILE_ROWS
        assert seen.isdisjoint(tile.rows)
        seen.update(tile.rows)
        assert tile.tokens >= MIN_SHARED_TOKENS
        assert tile.tokens % BLOCK_TOKENS == 0
        count = tile.tokens // BLOCK_TOKENS
        assert len({tuple(rows[row][:count]) for row in tile.rows}) == 1
        assert all(tile.tokens < lengths[row] for row in tile.rows)


@given(conversations())
@settings(deadline=None, max_examples=60)
def test_no_pair_is_left_outside(drawn: tuple[list[list[int]], list[int]]) -> None:
    rows, lengths = drawn
    tiles = find_tiles(table_of(rows, 40), np.array(lengths, np.int32), BLOCK_TOKENS)
    covered = {row for tile in tiles for row in tile.rows}
    least = MIN_SHARED_TOKENS // BLOCK_TOKENS
    for a, b in combinations(sorted(set(range(len(rows))) - covered), 2):
        shares = rows[a][:least] == rows[b][:least]
        long_enough = min(lengths[a], lengths[b]) > MIN_SHARED_TOKENS
        assert not (shares and long_enough)


def test_rows_on_both_sides_of_a_tile_have_one_of_their_own() -> None:
    deep = [1, 2, 8, 9]
    rows = [[1, 2, 3], [*deep, 10], [*deep, 13], [*deep, 18], [1, 2, 26, 27]]
    lengths = np.array([257, 513, 513, 513, 385], np.int32)
    tiles = find_tiles(table_of(rows, 10), lengths, BLOCK_TOKENS)
    assert {(frozenset(tile.rows), tile.tokens) for tile in tiles} == {
        (frozenset({1, 2, 3}), 4 * BLOCK_TOKENS),
        (frozenset({0, 4}), 2 * BLOCK_TOKENS),
    }


def test_a_subgroup_with_more_in_common_gets_its_own_tile() -> None:
    system, deep = [1, 2], [1, 2, 3, 4, 5, 6, 7, 8]
    rows = [[*deep, 20], [*system, 21], [*deep, 22], [*system, 23]]
    lengths = np.array([len(row) * BLOCK_TOKENS for row in rows], np.int32)
    tiles = find_tiles(table_of(rows, 10), lengths, BLOCK_TOKENS)
    assert {(frozenset(tile.rows), tile.tokens) for tile in tiles} == {
        (frozenset({0, 2}), 8 * BLOCK_TOKENS),
        (frozenset({1, 3}), 2 * BLOCK_TOKENS),
    }


def shared_rows(tables: GroupTables) -> SharedRows:
    return SharedRows(
        tables,
        group=0,
        block_tokens=BLOCK_TOKENS,
        max_rows=8,
        upload=lambda *arrays: tuple(map(torch.from_numpy, arrays)),
        device=torch.device("cpu"),
    )


def test_the_arrays_name_the_rows_of_each_tile() -> None:
    tables = GroupTables(6, 8, None)
    for slot, blocks in ((4, [1, 2, 3, 9]), (2, [1, 2, 3, 8]), (5, [7, 7, 7, 7])):
        tables.patch(np.full(4, slot), np.arange(4), np.array(blocks, np.int32))
    shared = shared_rows(tables)
    prefixes = shared.of(4)
    slots = np.array([5, 4, 2], np.int32)
    shared.update(slots, np.full(3, 500, np.int32), 4)
    assert prefixes.tiles.tolist() == [[0, 2, 384], [0, 0, 0]]
    assert sorted(prefixes.order_R[:2].tolist()) == [1, 2]
    assert sorted(prefixes.order_R.tolist()) == [0, 1, 2, 3]
    assert prefixes.tokens_R.tolist() == [0, 384, 384, 0]


def test_tiles_are_looked_for_when_rows_or_what_they_share_changed(monkeypatch: object) -> None:
    tables = GroupTables(4, 8, None)
    for slot in (0, 1):
        tables.patch(np.full(3, slot), np.arange(3), np.array([1, 2, 3 + slot], np.int32))
    shared, searches = shared_rows(tables), []
    real = shared_prefixes.find_tiles

    def counted(*args: object) -> object:
        searches.append(args)
        return real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(shared_prefixes, "find_tiles", counted)  # type: ignore[attr-defined]

    def step(slots: list[int], *updates: tuple[int, int, int, int]) -> int:
        rows = [Row(slot, [7], 300) for slot in slots]
        shared.follow(make_plan(rows, block_updates=updates))
        shared.update(np.array(slots, np.int32), np.full(len(slots), 301, np.int32), 2)
        return len(searches)

    assert step([0, 1]) == 1
    assert step([0, 1]) == 1
    assert step([0, 1], (0, 0, 3, 8)) == 1, "a block at a row's end is its own"
    assert step([0, 1], (0, 0, 1, 9)) == 2, "a block that is shared was written"
    assert step([1, 0]) == 3
