"""The layout solver: packing, waste, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cache_groups import make_groups

from tokenspeed.contracts.model import CacheGroup, gqa_fields
from tokenspeed.errors import CapabilityError, CapacityError, ConfigError
from tokenspeed.kv import solve_layout

GIB = 2**30


def test_single_group_has_packing_one_and_no_waste() -> None:
    groups = make_groups((30, 3, 64))
    layout = solve_layout(groups, block_tokens=128, dtype_bytes=4, arena_bytes=GIB)
    assert layout.groups[0].packing == 1
    assert layout.groups[0].waste == 0.0
    assert layout.physical_bytes == 30 * 2 * 3 * 64 * 128 * 4
    assert layout.num_physical_blocks == GIB // layout.physical_bytes
    assert layout.tokens_per_gib == GIB // (30 * 2 * 3 * 64 * 4)


def test_groups_whose_blocks_divide_each_other_waste_nothing() -> None:
    groups = make_groups((20, 8, 128), (10, 2, 64))
    layout = solve_layout(groups, block_tokens=128, dtype_bytes=2, arena_bytes=8 * GIB)
    assert [group.packing for group in layout.groups] == [1, 16]
    assert all(group.waste == 0.0 for group in layout.groups)


@pytest.mark.parametrize(
    "shapes",
    [
        ((23, 8, 128), (7, 5, 96)),
        ((40, 1, 576), (20, 2, 72), (4, 8, 128)),
        ((3, 7, 80), (5, 3, 112)),
    ],
)
def test_groups_of_odd_geometry_pack_with_small_waste(
    shapes: tuple[tuple[int, int, int], ...],
) -> None:
    layout = solve_layout(
        make_groups(*shapes), block_tokens=128, dtype_bytes=2, arena_bytes=64 * GIB
    )
    assert max(group.waste for group in layout.groups) < 0.06
    assert layout.physical_bytes < 0.02 * layout.total_bytes


def test_description_names_every_group_and_its_waste() -> None:
    layout = solve_layout(
        make_groups((2, 2, 16), (1, 1, 48)), block_tokens=16, dtype_bytes=4, arena_bytes=2**24
    )
    text = layout.describe()
    assert "group0" in text
    assert "group1" in text
    assert f"{layout.groups[1].waste:.1%}" in text
    assert "tokens/GiB" in text


@pytest.mark.parametrize("kind", ["window", "state"])
def test_other_kinds_are_refused_by_name(kind: str) -> None:
    group = CacheGroup("odd", kind, (0,), gqa_fields(1, 16))
    with pytest.raises(CapabilityError, match=f"'odd' is of kind '{kind}'"):
        solve_layout((group,), block_tokens=16, dtype_bytes=4, arena_bytes=GIB)


def test_an_arena_too_small_for_one_block_is_refused_with_both_sizes() -> None:
    with pytest.raises(CapacityError, match=r"10,000 bytes.*at least 32,768 bytes"):
        solve_layout(make_groups((1, 2, 32)), block_tokens=32, dtype_bytes=4, arena_bytes=10_000)
    layout = solve_layout(
        make_groups((1, 2, 32)), block_tokens=32, dtype_bytes=4, arena_bytes=32_768
    )
    assert layout.num_physical_blocks == 2


@pytest.mark.parametrize(
    ("block_tokens", "dtype_bytes", "groups", "text"),
    [
        (24, 4, make_groups((1, 1, 8)), "block_tokens is 24"),
        (8, 4, make_groups((1, 1, 8)), "block_tokens is 8"),
        (16, 3, make_groups((1, 1, 8)), "3 bytes"),
        (16, 4, (), "no cache group"),
        (16, 4, make_groups((1, 1, 8)) * 2, "every layer from 0 once"),
    ],
)
def test_wrong_sizes_are_refused(
    block_tokens: int, dtype_bytes: int, groups: tuple[CacheGroup, ...], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        solve_layout(groups, block_tokens=block_tokens, dtype_bytes=dtype_bytes, arena_bytes=GIB)


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 130)), min_size=1, max_size=3
    ),
    block_tokens=st.sampled_from([16, 64, 128]),
    dtype_bytes=st.sampled_from([1, 2, 4]),
)
def test_blocks_never_overlap_and_always_align(
    shapes: list[tuple[int, int, int]], block_tokens: int, dtype_bytes: int
) -> None:
    layout = solve_layout(
        make_groups(*shapes), block_tokens=block_tokens, dtype_bytes=dtype_bytes, arena_bytes=GIB
    )
    assert layout.total_bytes <= GIB
    assert layout.num_physical_blocks > len(shapes)
    for group in layout.groups:
        assert group.logical_bytes * group.packing == layout.physical_bytes
        assert group.logical_bytes >= group.payload_bytes
        assert group.logical_bytes % dtype_bytes == 0
        assert 0.0 <= group.waste < 1.0
