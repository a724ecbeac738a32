"""Solves the arena's geometry: one physical block size that several cache groups share.

Given the groups on one rank, what their backends demand and the bytes there are, it chooses the
order, how many pieces the layers of each state group are split in, every group's packing and the
physical block size, so that least of the arena is lost.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING

from tokenspeed.contracts.attention import ARENA_ORDERS, CacheDemand
from tokenspeed.errors import CapabilityError, CapacityError
from tokenspeed.kv.checks import check_groups, check_page_ids, check_pages
from tokenspeed.kv.geometry import block_geometry, split_by_layers
from tokenspeed.kv.layout import ArenaLayout, GroupLayout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tokenspeed.contracts.model import CacheGroup
    from tokenspeed.kv.geometry import BlockGeometry

MAX_PACKING = 64
MAX_PIECES = 16
PARTIAL_BLOCKS = 2
"""Physical blocks of a group that are reckoned as empty: smaller ones move sooner to another."""
PIECE_COST = 0.001
"""A piece more must save this share of the arena: each is one more row to keep and to hand over."""


def solve_layout(
    groups: Sequence[CacheGroup],
    *,
    block_tokens: int,
    dtype: str,
    arena_bytes: int,
    demands: Mapping[str, CacheDemand] | None = None,
    first_layer: int = 0,
) -> ArenaLayout:
    """Choose the layout that loses least of the arena.

    What a layout loses is its worst group's waste, the sentinel, and the partly filled physical
    blocks of every group.

    Args:
        groups: with the geometry of one rank.
        block_tokens: tokens of a logical block, a power of two >= 16.
        dtype: torch's name of the cache's element type, for fields that declare none.
        arena_bytes: bytes to lay out.
        demands: group name -> what its backend needs; absent: runtime strides over whole blocks.
        first_layer: of the model, or of the rank's pipeline stage.
    Raises:
        CapabilityError: no arena order suits every backend.
        CapacityError: the arena does not hold the sentinel and a block of every group.
        ConfigError: a size is out of range, or two groups share a layer or a name.
    """
    check_groups(groups, block_tokens, first_layer=first_layer)
    wanted = {group.name: CacheDemand() for group in groups} | dict(demands or {})
    check_pages(groups, wanted, block_tokens)
    order = _order(wanted)
    num_slabs = _num_slabs(groups) if order == "layer_major" else 1
    solved = [
        _best(blocks, num_slabs, arena_bytes)
        for blocks in _splits(groups, wanted, block_tokens, dtype, num_slabs)
    ]
    fitting = [(lost, size, blocks) for lost, size, blocks in solved if size[0] <= arena_bytes]
    if not fitting:
        raise _too_small(min(solved, key=lambda item: item[1][0]), block_tokens, arena_bytes)
    _, (_, slice_bytes, packings), blocks = min(fitting, key=lambda item: item[0])
    layout = ArenaLayout(
        physical_bytes=slice_bytes * num_slabs,
        num_physical_blocks=arena_bytes // (slice_bytes * num_slabs),
        block_tokens=block_tokens,
        groups=tuple(
            _group_layout(block, packing, slice_bytes, num_slabs, groups)
            for block, packing in zip(blocks, packings, strict=True)
        ),
        order=order,
        num_slabs=num_slabs,
    )
    check_page_ids(layout)
    return layout


_Size = tuple[int, int, tuple[int, ...]]
"""(bytes needed for the sentinel and a block a group, slice bytes, packing of each group)"""
_Solved = tuple[float, _Size, "tuple[BlockGeometry, ...]"]


def _order(demands: Mapping[str, CacheDemand]) -> str:
    for order in ARENA_ORDERS:
        if all(order in demand.orders for demand in demands.values()):
            return order
    takes = "; ".join(f"{name}: {', '.join(item.orders)}" for name, item in demands.items())
    raise CapabilityError(
        f"no arena order suits the backends of all cache groups ({takes}); one of "
        f"{', '.join(ARENA_ORDERS)} must be common to all; pin other backends with --attention",
        id="cache-unsupported",
    )


def _num_slabs(groups: Sequence[CacheGroup]) -> int:
    """One layer of a per-token group a slab; state groups deal theirs over as many."""
    return max(len(group.layers) for group in groups if group.kind != "state")


def _splits(
    groups: Sequence[CacheGroup],
    demands: Mapping[str, CacheDemand],
    block_tokens: int,
    dtype: str,
    num_slabs: int,
) -> Iterator[tuple[BlockGeometry, ...]]:
    """Yield the groups with state groups split in every number of pieces worth a try."""
    counts = [
        range(1, min(MAX_PIECES, len(group.layers)) + 1) if group.kind == "state" else (1,)
        for group in groups
    ]
    for choice in itertools.product(*counts):
        yield tuple(
            block_geometry(
                piece,
                demands[group.name],
                block_tokens=block_tokens,
                dtype=dtype,
                num_slabs=num_slabs,
            )
            for group, count in zip(groups, choice, strict=True)
            for piece in split_by_layers(group, count)
        )


def _best(blocks: tuple[BlockGeometry, ...], num_slabs: int, arena_bytes: int) -> _Solved:
    """Return what is lost with the best size; one that does not fit loses to any that does."""
    payloads = [block.payload_bytes for block in blocks]

    def lost(size: _Size) -> float:
        _, slice_bytes, packings = size
        physical = slice_bytes * num_slabs
        used = min(p * n / physical for p, n in zip(payloads, packings, strict=True))
        partial = (1 + PARTIAL_BLOCKS * len(blocks)) * physical / arena_bytes
        return 1.0 - used + partial + PIECE_COST * len(blocks)

    sizes = list(_sizes(blocks, num_slabs))
    fitting = [size for size in sizes if size[0] <= arena_bytes]
    size = min(fitting, key=lambda size: (lost(size), size)) if fitting else min(sizes)
    return lost(size), size, blocks


def _sizes(blocks: tuple[BlockGeometry, ...], num_slabs: int) -> Iterator[_Size]:
    """Yield slice sizes: multiples of each group's block, rounded up until every group's blocks lie
    at equal, aligned distances."""
    slices = [_round_up(block.slice_bytes, block.grain_bytes) for block in blocks]
    largest = max(slices)
    for one in sorted(set(slices)):
        for count in range(-(-largest // one), largest * MAX_PACKING // one + 1):
            packings = tuple(count * one // other for other in slices)
            if min(count, *packings) > MAX_PACKING:
                break
            packings = tuple(min(packing, MAX_PACKING) for packing in packings)
            grain = math.lcm(
                *(n * block.grain_bytes for n, block in zip(packings, blocks, strict=True))
            )
            size = _round_up(count * one, grain)
            yield size * num_slabs * (len(blocks) + 1), size, packings


def _group_layout(
    block: BlockGeometry,
    packing: int,
    slice_bytes: int,
    num_slabs: int,
    groups: Sequence[CacheGroup],
) -> GroupLayout:
    group = block.group
    source = next(item.name for item in groups if set(group.layers) <= set(item.layers))
    return GroupLayout(
        group=group,
        source=source,
        packing=packing,
        layers_per_slice=block.layers_per_slice,
        block_stride_bytes=slice_bytes // packing,
        payload_bytes=block.payload_bytes,
        logical_bytes=slice_bytes * num_slabs // packing,
        slice_bytes=block.slice_bytes,
        fields=block.fields,
    )


def _too_small(nearest: _Solved, block_tokens: int, arena_bytes: int) -> CapacityError:
    _, (needed, _, _), blocks = nearest
    sizes = ", ".join(f"{block.payload_bytes:,}" for block in blocks)
    return CapacityError(
        f"KV arena of {arena_bytes:,} bytes is too small: {len(blocks)} cache group(s) of {sizes} "
        f"bytes a block of {block_tokens} tokens need at least {needed:,} bytes; give the cache "
        "more memory or use smaller blocks"
    )


def _round_up(size: int, grain: int) -> int:
    return -(-size // grain) * grain
