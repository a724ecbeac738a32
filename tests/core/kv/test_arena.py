"""The arena's views alias one storage at the addresses the layout says."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.cache_groups import make_groups

from tokenspeed.contracts.attention import CacheDemand, KVView, StateView
from tokenspeed.contracts.model import CacheField, CacheGroup, gqa_fields
from tokenspeed.errors import CapacityError
from tokenspeed.kv import Arena, solve_layout


def make_arena(
    *shapes: tuple[int, int, int], dtype: torch.dtype = torch.float32, arena_bytes: int = 2**20
) -> Arena:
    groups = make_groups(*shapes)
    name = str(dtype).removeprefix("torch.")
    layout = solve_layout(groups, block_tokens=16, dtype=name, arena_bytes=arena_bytes)
    return Arena(layout, torch.zeros(layout.total_bytes, dtype=torch.uint8))


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
    layout = solve_layout(groups, block_tokens=16, dtype="float32", arena_bytes=2**16)
    with pytest.raises(CapacityError, match="the layout needs"):
        Arena(layout, torch.zeros(layout.total_bytes - 1, dtype=torch.uint8))


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


HYBRID = (
    CacheGroup("full", "full", (3, 7), gqa_fields(2, 16)),
    CacheGroup("window", "window", (2, 6), gqa_fields(2, 16), window=20),
    CacheGroup(
        "gdn",
        "state",
        (0, 1, 4, 5),
        (CacheField("state", (4, 8, 8), "float32"), CacheField("conv", (24, 3))),
    ),
)
LAYER_MAJOR = {"full": CacheDemand(orders=("layer_major",))}


@pytest.mark.parametrize("demands", [{}, LAYER_MAJOR], ids=["block_major", "layer_major"])
def test_every_kind_has_views_of_its_shapes_and_no_two_cells_share_a_byte(
    demands: dict[str, CacheDemand],
) -> None:
    layout = solve_layout(
        HYBRID, block_tokens=16, dtype="bfloat16", arena_bytes=2**19, demands=demands
    )
    arena = Arena(layout, torch.zeros(layout.total_bytes, dtype=torch.uint8))
    views = arena.views()
    cells = []
    for layer, view in enumerate(views):
        if isinstance(view, KVView):
            assert view.k.shape[1:] == (2, 16, 16)
            cells += [(view.k, layer, 0), (view.v, layer, 1)]
        else:
            assert view.fields["state"].shape[1:] == (4, 8, 8)
            assert view.fields["state"].dtype == torch.float32
            assert view.fields["conv"].dtype == torch.bfloat16
            cells += [(view.fields["state"], layer, 0), (view.fields["conv"], layer, 1)]
    groups = {layer: group for group in layout.groups for layer in group.layers}
    for tensor, layer, part in cells:  # block ids of groups meet in different physical blocks
        first = {"full": 1, "window": 3, "state": 5}[groups[layer].kind]
        for block in range(first, first + 2):
            tensor[block * groups[layer].packing] = 20 * layer + 10 * part + block - first + 1
    for tensor, layer, part in cells:
        first = {"full": 1, "window": 3, "state": 5}[groups[layer].kind]
        for block in range(first, first + 2):
            value = 20 * layer + 10 * part + block - first + 1
            assert torch.all(tensor[block * groups[layer].packing] == value)


def test_layer_major_layers_are_dense_arrays_of_blocks() -> None:
    layout = solve_layout(
        make_groups((3, 2, 8)),
        block_tokens=16,
        dtype="float32",
        arena_bytes=2**18,
        demands={"group0": CacheDemand(orders=("layer_major",))},
    )
    view = Arena(layout, torch.zeros(layout.total_bytes, dtype=torch.uint8)).views()[1]
    assert isinstance(view, KVView)
    assert view.k.stride(0) == 2 * view.k[0].numel()
    assert view.k.data_ptr() == view.v.data_ptr() - 4 * view.k[0].numel()


@pytest.mark.parametrize("packed", [True, False])
def test_pages_of_a_layer_are_the_tokens_of_its_blocks(packed: bool) -> None:
    fields = (CacheField("latent", (24,)), CacheField("index", (12,), "uint8"))
    groups = (CacheGroup("mla", "full", (0, 1, 2), fields),)
    plain, paged = (
        solve_layout(groups, block_tokens=32, dtype="float16", arena_bytes=2**18, demands=demands)
        for demands in ({}, {"mla": CacheDemand(8, packed, ("latent",))})
    )
    assert plain.page_ids(0) is None
    pages = paged.page_ids(0)
    assert pages is not None
    assert (pages.page_tokens, pages.num_pages) == (8, 4)
    arena = Arena(paged, torch.zeros(paged.total_bytes, dtype=torch.uint8))
    latent = arena.views()[1].fields["latent"]  # type: ignore[union-attr]
    assert latent.shape[1:] == (8, 24)
    if packed:
        assert latent.is_contiguous()
        assert (pages.unit_bytes, pages.step) == (8 * 24 * 2, 1)
    for block in (2, 3):
        for page in range(4):
            latent[block * pages.per_block + page * pages.step] = 10 * block + page
    whole = arena._strided(0, paged.groups[0].fields[0], 1, 1)[0]
    assert whole[2, :, 0].tolist() == [20.0] * 8 + [21.0] * 8 + [22.0] * 8 + [23.0] * 8
    assert whole[3, :, 5].tolist() == [30.0] * 8 + [31.0] * 8 + [32.0] * 8 + [33.0] * 8


def test_pages_keep_the_heads_of_keys_and_values() -> None:
    demands = {"group0": CacheDemand(page_tokens=4)}
    layout = solve_layout(
        make_groups((2, 3, 8)), block_tokens=16, dtype="float32", arena_bytes=2**18, demands=demands
    )
    arena = Arena(layout, torch.zeros(layout.total_bytes, dtype=torch.uint8))
    pages = layout.page_ids(0)
    assert pages is not None
    view = arena.views()[1]
    assert isinstance(view, KVView)
    whole = arena._strided(0, layout.groups[0].fields[1], 1, 1)[0]
    whole[3] = torch.arange(3 * 16 * 8).view(3, 16, 8)
    page = view.v[3 * pages.per_block + 2 * pages.step]
    assert torch.equal(page, whole[3, :, 8:12])


def test_poison_fills_a_block_of_every_layer_and_nothing_else() -> None:
    layout = solve_layout(HYBRID, block_tokens=16, dtype="bfloat16", arena_bytes=2**19)
    arena = Arena(layout, torch.zeros(layout.total_bytes, dtype=torch.uint8))
    arena.poison(2, [4])
    view = arena.views()[4]
    assert isinstance(view, StateView)
    for name in ("state", "conv"):
        assert torch.all(view.fields[name][4].isnan())
        assert not view.fields[name][3].isnan().any()
    touched = int(arena.storage.count_nonzero())
    assert touched <= sum(extent.total_bytes for extent in arena.block_bytes(2, 4, (0, 4)))
