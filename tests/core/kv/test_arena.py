"""The arena's views alias one storage at the addresses the layout says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cache_groups import make_groups

from tokenspeed.errors import CapacityError
from tokenspeed.kv import Arena, solve_layout


def make_arena(
    *shapes: tuple[int, int, int], dtype: torch.dtype = torch.float32, arena_bytes: int = 2**20
) -> Arena:
    groups = make_groups(*shapes)
    layout = solve_layout(
        groups, block_tokens=16, dtype_bytes=dtype.itemsize, arena_bytes=arena_bytes
    )
    return Arena(layout, groups, torch.zeros(layout.total_bytes, dtype=torch.uint8), dtype)


def test_views_have_the_contract_shape_and_alias_the_storage() -> None:
    arena = make_arena((3, 2, 8))
    views = arena.views()
    assert len(views) == 3
    assert views[0].k.shape == (arena.layout.num_blocks(0), 2, 16, 8)
    views[2].v[5, 1, 3, 4] = 7.0
    values = arena.storage.view(torch.float32)
    block_elements = arena.layout.groups[0].logical_bytes // 4
    index = 5 * block_elements + (((2 * 2 + 1) * 2 + 1) * 16 + 3) * 8 + 4
    assert values.nonzero().tolist() == [[index]]


def test_block_ids_run_across_packed_physical_blocks() -> None:
    arena = make_arena((4, 2, 16), (1, 1, 16), dtype=torch.float16)
    layout = arena.layout
    packing = layout.groups[1].packing
    assert packing > 1
    layer = next(i for i, view in enumerate(arena.views()) if view.k.shape[1] == 1)
    arena.views()[layer].k[3 * packing + 1] = 1.0
    touched = arena.storage.nonzero().flatten()
    start = 3 * layout.physical_bytes + layout.groups[1].logical_bytes
    assert start <= int(touched[0])
    assert int(touched[-1]) < start + layout.groups[1].payload_bytes


def test_copy_moves_only_the_first_tokens_of_every_layer_of_the_group() -> None:
    arena = make_arena((2, 2, 8), (1, 3, 24))
    views = arena.views()
    group_layers = (0, 2)
    for layer in group_layers:
        views[layer].k[1] = 10.0 + layer
        views[layer].v[1] = 20.0 + layer
    arena.copy_tokens(0, 1, 4, 5)
    for layer in group_layers:
        assert torch.all(views[layer].k[4, :, :5] == 10.0 + layer)
        assert torch.all(views[layer].v[4, :, :5] == 20.0 + layer)
        assert torch.all(views[layer].k[4, :, 5:] == 0.0)
        assert torch.all(views[layer].v[3] == 0.0)


def test_a_storage_smaller_than_the_layout_is_refused() -> None:
    groups = make_groups((1, 1, 8))
    layout = solve_layout(groups, block_tokens=16, dtype_bytes=4, arena_bytes=2**16)
    with pytest.raises(CapacityError, match="the layout needs"):
        Arena(layout, groups, torch.zeros(layout.total_bytes - 1, dtype=torch.uint8), torch.float32)


@settings(max_examples=40, deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(1, 33)), min_size=1, max_size=3
    ),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    data=st.data(),
)
def test_no_two_cells_of_one_group_share_a_byte(
    shapes: list[tuple[int, int, int]], dtype: torch.dtype, data: st.DataObject
) -> None:
    arena = make_arena(*shapes, dtype=dtype, arena_bytes=2**19)
    index = data.draw(st.integers(0, len(shapes) - 1))
    num_blocks = arena.layout.num_blocks(index)
    blocks = data.draw(st.lists(st.integers(0, num_blocks - 1), min_size=2, max_size=4))
    views = arena.views()
    layers = make_groups(*shapes)[index].layers
    expected = {}
    for block in blocks:
        for layer in layers:
            for part in ("k", "v"):
                value = float(len(expected) % 200 + 1)
                getattr(views[layer], part)[block] = value
                expected[block, layer, part] = value
    for (block, layer, part), value in expected.items():
        assert torch.all(getattr(views[layer], part)[block] == value)
