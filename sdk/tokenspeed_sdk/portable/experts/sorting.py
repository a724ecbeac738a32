# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Sorts pairs of a token and a chosen expert by expert, on the device and without atomics.

    count_pairs    a program a chunk of pairs: how many each expert has there
    sum_chunks     a program an expert: how many it has in the chunks before each
    place_pairs    a program a chunk: each pair goes behind those before it; tiles are listed

All of it lies in one int32 tensor, `work`:

    [tile's expert or -1: M][tile's first: M][tile's end: M][sorted pairs: P][totals: E][counts: EG]

Legend: P pairs, E experts, G chunks of C pairs, M most tiles there can be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from tokenspeed_sdk.portable.experts.tiles import Tiles

CHUNK = 128
COUNTS_BLOCK = 1024


@triton.jit
def _experts_of(experts_ptr, pair, num_pairs, num_experts):
    """Return experts of pairs; `num_experts` where another rank holds it, and outside."""
    expert = tl.load(experts_ptr + pair, mask=pair < num_pairs, other=-1)
    is_held = (expert >= 0) & (expert < num_experts)
    return tl.where(is_held, expert, num_experts).to(tl.int32)


@triton.jit
def count_pairs_kernel(
    experts_ptr,
    work_ptr,
    num_pairs,
    num_experts,
    num_chunks,
    most_tiles,
    tiles_each,
    CHUNK: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK_TILES: tl.constexpr,
):
    """Count a chunk's pairs of each expert, and clear its part of the list of tiles."""
    chunk = tl.program_id(0)
    expert = _experts_of(experts_ptr, chunk * CHUNK + tl.arange(0, CHUNK), num_pairs, num_experts)
    counts = tl.histogram(expert, BINS)
    number = tl.arange(0, BINS)
    counts_ptr = work_ptr + 3 * most_tiles + num_pairs + num_experts
    tl.store(counts_ptr + number * num_chunks + chunk, counts, mask=number < num_experts)
    place = tl.arange(0, BLOCK_TILES)
    tile = chunk * tiles_each + place
    is_own = (place < tiles_each) & (tile < most_tiles)
    tl.store(work_ptr + tile, tl.full([BLOCK_TILES], -1, tl.int32), mask=is_own)


@triton.jit
def sum_chunks_kernel(
    work_ptr, num_pairs, num_experts, num_chunks, most_tiles, BLOCK: tl.constexpr
):
    """Replace an expert's counts by their sums over earlier chunks, and write the total."""
    expert = tl.program_id(0)
    totals_ptr = work_ptr + 3 * most_tiles + num_pairs
    counts_ptr = totals_ptr + num_experts + expert * num_chunks
    total = 0
    for start in range(0, num_chunks, BLOCK):
        chunk = start + tl.arange(0, BLOCK)
        inside = chunk < num_chunks
        counts = tl.load(counts_ptr + chunk, mask=inside, other=0)
        tl.store(counts_ptr + chunk, total + tl.cumsum(counts, 0) - counts, mask=inside)
        total += tl.sum(counts)
    tl.store(totals_ptr + expert, total)


@triton.jit
def place_pairs_kernel(
    experts_ptr,
    work_ptr,
    num_pairs,
    num_experts,
    num_chunks,
    most_tiles,
    BLOCK_M: tl.constexpr,
    CHUNK: tl.constexpr,
    BINS: tl.constexpr,
):
    """Write a chunk's pairs where they belong, and its share of the tiles."""
    chunk = tl.program_id(0)
    sorted_ptr = work_ptr + 3 * most_tiles
    totals_ptr = sorted_ptr + num_pairs
    counts_ptr = totals_ptr + num_experts
    number = tl.arange(0, BINS)
    totals = tl.load(totals_ptr + number, mask=number < num_experts, other=0)
    ends = tl.cumsum(totals, 0)
    starts = ends - totals

    offset = tl.arange(0, CHUNK)
    pair = chunk * CHUNK + offset
    expert = _experts_of(experts_ptr, pair, num_pairs, num_experts)
    is_held = expert < num_experts
    other = _experts_of(experts_ptr, chunk * CHUNK + offset, num_pairs, num_experts)
    is_before = (expert[:, None] == other[None, :]) & (offset[None, :] < offset[:, None])
    place = tl.sum(is_before.to(tl.int32), 1)
    place += tl.load(counts_ptr + expert * num_chunks + chunk, mask=is_held, other=0)
    place += tl.gather(starts, expert, 0)
    tl.store(sorted_ptr + place, pair, mask=is_held)

    num_tiles = tl.cdiv(totals, BLOCK_M)
    first_tile = tl.cumsum(num_tiles, 0) - num_tiles
    for index in range(chunk, tl.max(num_tiles), num_chunks):
        has_tile = index < num_tiles
        at = work_ptr + first_tile + index
        first = starts + index * BLOCK_M
        tl.store(at, number, mask=has_tile)
        tl.store(at + most_tiles, first, mask=has_tile)
        tl.store(at + 2 * most_tiles, tl.minimum(first + BLOCK_M, ends), mask=has_tile)


def sort_pairs(
    experts_TX: torch.Tensor, num_experts: int, tiles: Tiles
) -> tuple[torch.Tensor, int]:
    """Sort the pairs of a step.

    Args:
        experts_TX: (T, X) int64, device, contiguous; neither is 0.
    Returns:
        `work`, as drawn above, and M.
    """
    num_pairs = experts_TX.numel()
    num_chunks = triton.cdiv(num_pairs, CHUNK)
    most_tiles = num_pairs // tiles.block_m + min(num_experts, num_pairs)
    tiles_each = triton.cdiv(most_tiles, num_chunks)
    size = 3 * most_tiles + num_pairs + num_experts * (1 + num_chunks)
    work = torch.empty(size, dtype=torch.int32, device=experts_TX.device)
    bins = triton.next_power_of_2(num_experts + 1)
    sizes = (num_pairs, num_experts, num_chunks, most_tiles)
    count_pairs_kernel[(num_chunks,)](
        experts_TX,
        work,
        *sizes,
        tiles_each,
        CHUNK=CHUNK,
        BINS=bins,
        BLOCK_TILES=triton.next_power_of_2(tiles_each),
    )
    block = min(COUNTS_BLOCK, triton.next_power_of_2(num_chunks))
    sum_chunks_kernel[(num_experts,)](work, *sizes, BLOCK=block)
    place_pairs_kernel[(num_chunks,)](
        experts_TX, work, *sizes, BLOCK_M=tiles.block_m, CHUNK=CHUNK, BINS=bins
    )
    return work, most_tiles
