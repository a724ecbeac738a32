"""The layout solver: packing, splits, orders, waste, refusals."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cache_groups import make_groups

from tokenspeed.contracts.attention import CacheDemand
from tokenspeed.contracts.model import CacheField, CacheGroup, gqa_fields
from tokenspeed.errors import CapabilityError, CapacityError, ConfigError
from tokenspeed.kv import solve_layout
from tokenspeed.kv.geometry import ALIGN_BYTES

GIB = 2**30


def test_single_group_has_packing_one_and_no_waste() -> None:
    groups = make_groups((30, 3, 64))
    layout = solve_layout(groups, block_tokens=128, dtype="float32", arena_bytes=GIB)
    assert layout.groups[0].packing == 1
    assert layout.groups[0].waste == 0.0
    assert layout.physical_bytes == 30 * 2 * 3 * 64 * 128 * 4
    assert layout.num_physical_blocks == GIB // layout.physical_bytes
    assert layout.tokens_per_gib == GIB // (30 * 2 * 3 * 64 * 4)


def test_groups_whose_blocks_divide_each_other_waste_nothing() -> None:
    groups = make_groups((20, 8, 128), (10, 2, 64))
    layout = solve_layout(groups, block_tokens=128, dtype="bfloat16", arena_bytes=8 * GIB)
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
        make_groups(*shapes), block_tokens=128, dtype="bfloat16", arena_bytes=64 * GIB
    )
    assert max(group.waste for group in layout.groups) < 0.06
    assert layout.physical_bytes < 0.02 * layout.total_bytes


def test_an_arena_too_small_for_one_block_is_refused_with_both_sizes() -> None:
    with pytest.raises(CapacityError, match=r"10,000 bytes.*at least 32,768 bytes"):
        solve_layout(make_groups((1, 2, 32)), block_tokens=32, dtype="float32", arena_bytes=10_000)
    layout = solve_layout(
        make_groups((1, 2, 32)), block_tokens=32, dtype="float32", arena_bytes=32_768
    )
    assert layout.num_physical_blocks == 2


@pytest.mark.parametrize(
    ("block_tokens", "dtype", "groups", "text"),
    [
        (24, "float32", make_groups((1, 1, 8)), "block_tokens is 24"),
        (8, "float32", make_groups((1, 1, 8)), "block_tokens is 8"),
        (16, "int4", make_groups((1, 1, 8)), "dtype 'int4'"),
        (16, "float32", (), "no cache group"),
        (16, "float32", make_groups((1, 1, 8)) * 2, "every layer from 0 once"),
    ],
)
def test_wrong_sizes_are_refused(
    block_tokens: int, dtype: str, groups: tuple[CacheGroup, ...], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        solve_layout(groups, block_tokens=block_tokens, dtype=dtype, arena_bytes=GIB)


@settings(max_examples=60, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 130)), min_size=1, max_size=3
    ),
    block_tokens=st.sampled_from([16, 64, 128]),
    dtype=st.sampled_from(["float8_e4m3fn", "bfloat16", "float32"]),
)
def test_blocks_never_overlap_and_always_align(
    shapes: list[tuple[int, int, int]], block_tokens: int, dtype: str
) -> None:
    layout = solve_layout(
        make_groups(*shapes), block_tokens=block_tokens, dtype=dtype, arena_bytes=GIB
    )
    assert layout.total_bytes <= GIB
    assert layout.num_physical_blocks > len(shapes)
    for group in layout.groups:
        assert group.logical_bytes * group.packing == layout.physical_bytes
        assert group.logical_bytes >= group.payload_bytes
        assert group.logical_bytes % ALIGN_BYTES == 0
        assert 0.0 <= group.waste < 1.0


def test_a_window_group_is_laid_out_like_a_full_one() -> None:
    fields = gqa_fields(8, 64)
    groups = (
        CacheGroup("full", "full", (1, 3), fields),
        CacheGroup("window", "window", (0, 2), fields, window=128),
    )
    layout = solve_layout(groups, block_tokens=128, dtype="bfloat16", arena_bytes=GIB)
    assert [(group.packing, group.waste) for group in layout.groups] == [(1, 0.0), (1, 0.0)]
    assert layout.bytes_per_token == 2 * 2 * 8 * 64 * 2  # windows do not grow with a sequence


def test_a_snapshot_shares_the_physical_block_size_and_is_not_counted_per_token() -> None:
    state = CacheField("state", (12, 128, 128), "float32")
    groups = (
        CacheGroup("mla", "full", tuple(range(24)), (CacheField("latent", (576,)),)),
        CacheGroup("kda", "state", tuple(range(24, 93)), (state,)),
    )
    layout = solve_layout(groups, block_tokens=128, dtype="bfloat16", arena_bytes=60 * GIB)
    mla, kda = layout.groups
    assert kda.payload_bytes == 69 * 12 * 128 * 128 * 4
    assert kda.packing * kda.logical_bytes == mla.packing * mla.logical_bytes
    assert layout.bytes_per_token == mla.logical_bytes / 128
    assert max(mla.waste, kda.waste) < 0.03


def test_a_state_group_too_large_for_its_neighbours_is_split_by_layers() -> None:
    groups = (
        CacheGroup("full", "full", (0,), gqa_fields(1, 32)),
        CacheGroup("state", "state", tuple(range(1, 8)), (CacheField("s", (200_000,)),)),
    )
    layout = solve_layout(groups, block_tokens=16, dtype="bfloat16", arena_bytes=GIB)
    pieces = layout.groups[1:]
    assert [piece.name for piece in pieces] == [f"state.{i}" for i in range(len(pieces))]
    assert len(pieces) > 1
    assert [layer for piece in pieces for layer in piece.layers] == list(range(1, 8))
    assert {piece.source for piece in pieces} == {"state"}


@pytest.mark.parametrize("block_tokens", [64, 128, 256])
def test_packed_pages_make_every_offset_a_multiple_of_the_page(block_tokens: int) -> None:
    fields = (CacheField("latent", (576,)), CacheField("index", (132,), "uint8"))
    groups = (
        CacheGroup("mla", "full", tuple(range(5)), fields),
        CacheGroup("s", "state", (5, 6), (CacheField("x", (3, 7777), "float32"),)),
    )
    demand = CacheDemand(page_tokens=64, packed=True, fields=("latent",))
    layout = solve_layout(
        groups,
        block_tokens=block_tokens,
        dtype="bfloat16",
        arena_bytes=GIB,
        demands={"mla": demand},
    )
    page, mla = 64 * 576 * 2, layout.groups[0]
    latent = mla.fields[0]
    sizes = (layout.physical_bytes, mla.block_stride_bytes, latent.layer_stride_bytes)
    assert [size % page for size in (*sizes, latent.offset_bytes)] == [0, 0, 0, 0]
    assert mla.fields[1].offset_bytes >= latent.offset_bytes + 5 * latent.payload_bytes


def test_layer_major_is_taken_only_when_a_backend_needs_it() -> None:
    groups = (
        CacheGroup("full", "full", (3, 7), gqa_fields(2, 16)),
        CacheGroup("gdn", "state", (0, 1, 2, 4, 5, 6), (CacheField("s", (4, 8, 8), "float32"),)),
    )
    need = {"full": CacheDemand(orders=("layer_major",))}
    plain = solve_layout(groups, block_tokens=16, dtype="float32", arena_bytes=2**22)
    layered = solve_layout(
        groups, block_tokens=16, dtype="float32", arena_bytes=2**22, demands=need
    )
    assert (plain.order, plain.num_slabs) == ("block_major", 1)
    assert (layered.order, layered.num_slabs) == ("layer_major", 2)
    assert [group.layers_per_slice for group in layered.groups if group.kind == "full"] == [1]
    assert all(group.waste < 0.03 for group in layered.groups)


def test_backends_that_share_no_order_are_refused_by_name() -> None:
    groups = make_groups((1, 1, 16), (1, 1, 16))
    demands = {
        "group0": CacheDemand(orders=("layer_major",)),
        "group1": CacheDemand(orders=("block_major",)),
    }
    with pytest.raises(CapabilityError, match=r"group0: layer_major; group1: block_major"):
        solve_layout(groups, block_tokens=16, dtype="float32", arena_bytes=GIB, demands=demands)


def test_a_page_that_does_not_divide_a_block_is_refused() -> None:
    demands = {"group0": CacheDemand(page_tokens=24)}
    with pytest.raises(CapabilityError, match="pages of 24 tokens, a block has 16"):
        solve_layout(
            make_groups((1, 1, 16)),
            block_tokens=16,
            dtype="float32",
            arena_bytes=GIB,
            demands=demands,
        )


@pytest.mark.parametrize(
    ("group", "text"),
    [
        (CacheGroup("odd", "mamba", (0,), gqa_fields(1, 16)), "'odd' is of kind 'mamba'"),
        (CacheGroup("odd", "window", (0,), gqa_fields(1, 16)), "has window 0"),
        (CacheGroup("odd", "full", (0,), gqa_fields(1, 16), window=8), "has window 8"),
        (CacheGroup("odd", "full", (0,), ()), "has the fields"),
        (CacheGroup("odd", "state", (0,), gqa_fields(1, 16)), "none of kind 'full'"),
        (
            CacheGroup("odd", "state", (0,), gqa_fields(1, 16), speculation="guess"),
            "speculation 'guess'",
        ),
    ],
)
def test_a_group_that_makes_no_sense_is_refused_by_name(group: CacheGroup, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        solve_layout((group,), block_tokens=16, dtype="float32", arena_bytes=GIB)


def test_more_pages_than_tables_can_name_are_refused() -> None:
    groups = (
        CacheGroup("full", "full", (0,), gqa_fields(1, 65)),
        CacheGroup("odd", "state", (1,), (CacheField("s", (1001,), "float32"),)),
    )
    with pytest.raises(CapabilityError, match=r"'full' need .* ids, allowed are 2,147,483,647"):
        solve_layout(
            groups,
            block_tokens=128,
            dtype="float8_e4m3fn",
            arena_bytes=2**40,
            demands={"full": CacheDemand(page_tokens=16)},
        )
