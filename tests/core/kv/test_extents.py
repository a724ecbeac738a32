"""Extents name exactly the bytes that a block's layers occupy in the arena."""

from __future__ import annotations

import pytest
import torch

from tokenspeed.contracts.attention import CacheDemand
from tokenspeed.contracts.model import CacheField, CacheGroup, gqa_fields
from tokenspeed.kv import Arena, layer_ranges, solve_layout

GROUPS = (
    CacheGroup("full", "full", (3, 7), gqa_fields(2, 16)),
    CacheGroup("gdn", "state", (0, 1, 2, 4, 5, 6), (CacheField("s", (4, 8, 8), "float32"),)),
)
MLA = (
    CacheGroup(
        "mla", "full", (0, 1, 2), (CacheField("latent", (24,)), CacheField("index", (12,), "uint8"))
    ),
)
CASES = {
    "block_major": (GROUPS, {}),
    "layer_major": (GROUPS, {"full": CacheDemand(orders=("layer_major",))}),
    "packed": (MLA, {"mla": CacheDemand(page_tokens=8, packed=True, fields=("latent",))}),
}


def make_arena(case: str) -> Arena:
    groups, demands = CASES[case]
    layout = solve_layout(
        groups, block_tokens=16, dtype="float16", arena_bytes=2**18, demands=demands
    )
    return Arena(layout, torch.zeros(layout.total_bytes, dtype=torch.uint8))


@pytest.mark.parametrize("case", CASES)
def test_what_is_written_through_the_views_lies_in_the_extents_of_its_block(case: str) -> None:
    arena = make_arena(case)
    for index, group in enumerate(arena.layout.groups):
        for first, last in [(0, len(group.layers)), (0, 1), (1, 2), (1, len(group.layers))]:
            arena.storage.zero_()
            arena.poison(index, [5])
            inside = arena.storage.clone()
            for extent in arena.block_bytes(index, 5, (0, len(group.layers))):
                for run in range(extent.count):
                    start = extent.base_bytes + run * extent.stride_bytes
                    inside[start : start + extent.run_bytes] = 0
            assert not inside.any(), "a byte of the block lies outside its extents"
            covered = _covered(arena, index, (first, last))
            rest = (
                *_covered(arena, index, (0, first)),
                *_covered(arena, index, (last, len(group.layers))),
            )
            assert not set(covered) & set(rest)
            payload = group.payload_bytes // len(group.layers) * (last - first)
            assert len(covered) == len(set(covered)) >= payload


@pytest.mark.parametrize("case", CASES)
def test_copying_all_extents_of_a_block_moves_its_whole_content(case: str) -> None:
    arena = make_arena(case)
    arena.storage.copy_(torch.arange(arena.storage.numel()) % 251)
    for index, group in enumerate(arena.layout.groups):
        for layers in layer_ranges(len(group.layers), 2):
            pairs = zip(
                arena.block_bytes(index, 3, layers),
                arena.block_bytes(index, 6, layers),
                strict=True,
            )
            for source, target in pairs:
                for run in range(source.count):
                    start = source.base_bytes + run * source.stride_bytes
                    place = target.base_bytes + run * target.stride_bytes
                    data = arena.storage[start : start + source.run_bytes].clone()
                    arena.storage[place : place + target.run_bytes] = data
        covered = zip(
            _covered(arena, index, (0, len(group.layers)), 3),
            _covered(arena, index, (0, len(group.layers)), 6),
            strict=True,
        )
        assert all(arena.storage[a] == arena.storage[b] for a, b in covered)


def test_a_whole_block_is_one_run_in_block_major_and_one_a_slab_in_layer_major() -> None:
    plain, layered = make_arena("block_major"), make_arena("layer_major")
    assert [extent.count for extent in plain.block_bytes(0, 1, (0, 2))] == [1]
    assert [extent.count for extent in layered.block_bytes(0, 1, (0, 2))] == [2]
    assert layered.block_bytes(0, 1, (0, 2))[0].stride_bytes == layered.layout.slab_bytes


def test_layer_ranges_cover_all_layers_once() -> None:
    assert layer_ranges(7, 3) == ((0, 2), (2, 4), (4, 7))
    assert layer_ranges(2, 1) == ((0, 2),)


def _covered(arena: Arena, index: int, layers: tuple[int, int], block: int = 5) -> list[int]:
    return [
        byte
        for extent in arena.block_bytes(index, block, layers)
        for run in range(extent.count)
        for byte in range(
            extent.base_bytes + run * extent.stride_bytes,
            extent.base_bytes + run * extent.stride_bytes + extent.run_bytes,
        )
    ]
