"""How attention is cut: pure functions of shapes and of the device, so that runs repeat themselves.

Nothing here depends on the other rows of a step: a row's result is the same in every batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton

MIN_TILE = 16
"""Least size of a side of a matrix product."""
MOST_HEADS = 64
"""Most query heads of one kv head that one tile takes."""


@dataclass(frozen=True, slots=True)
class Device:
    """What kernels run on.

    Args:
        processors: that run programs side by side.
        shared_bytes: most shared memory of a program.
    """

    processors: int
    shared_bytes: int


INTERPRETER = Device(processors=1, shared_bytes=1 << 17)
"""On the host, programs run one after another: few of them."""


@lru_cache
def device_of(device: torch.device) -> Device:
    """Read a device's limits from triton's driver."""
    if device.type == "cpu":
        return INTERPRETER
    index = torch.accelerator.current_device_index() if device.index is None else device.index
    found = triton.runtime.driver.active.utils.get_device_properties(index)
    return Device(found["multiprocessor_count"], found["max_shared_mem"])


@dataclass(frozen=True, slots=True)
class Tiling:
    """One kernel's shapes: queries x heads of a tile, its keys, warps, and loads in flight."""

    queries: int
    keys: int
    num_warps: int
    num_stages: int


@dataclass(frozen=True, slots=True)
class Cut:
    """How the cache of a row is cut into parts that are attended side by side.

    Args:
        row_parts: most parts of a decode row, and of what rows share.
        row_tokens: least tokens of such a part.
        programs: that decode rows are spread over.
        chunk_programs: a chunk is cut until it alone makes so many programs.
        chunk_tokens: least tokens of a part of a chunk's cache.
        chunk_bytes: most memory of the partial results of one launch; more rows take more launches.
    """

    row_parts: int
    row_tokens: int
    programs: int
    chunk_programs: int
    chunk_tokens: int
    chunk_bytes: int = 256 << 20

    def least_tiles(self, tiling: Tiling) -> int:
        """Return the least tiles of a part of a decode row."""
        return max(1, self.row_tokens // tiling.keys)


def cut_for(device: Device, head_groups: int) -> Cut:
    """Return how caches are cut.

    One row of eight kv heads makes two programs a processor; with one kv head there are 64 parts at
    most, for beyond that writing and merging them costs more than the parallel reading brings.
    Parts of 256 tokens are read in about the time that starting a program takes.
    """
    parts = triton.next_power_of_2(-(-device.processors // head_groups))
    return Cut(
        row_parts=min(max(parts, 16), 64),
        row_tokens=256,
        programs=4 * device.processors,
        chunk_programs=2 * device.processors,
        chunk_tokens=1024,
    )


def tokens_of_tile(block_tokens: int, most: int) -> int:
    """Return how many keys a tile has, so that none crosses a block: a power of two."""
    tokens = min(block_tokens & -block_tokens, most)
    assert tokens >= MIN_TILE, f"blocks of {block_tokens} tokens; powers of two from 16 on"
    return tokens


@lru_cache
def row_tiling(heads: int, dims: int, itemsize: int, block_tokens: int, device: Device) -> Tiling:
    """Return the tiling of decode rows: the query heads of one kv head, padded, by 64 keys.

    The loop waits for memory: 64 keys of 128 dims and two stages keep 64 KiB in flight a program,
    and let three of them share a processor.

    Args:
        dims: of a padded key and a padded value together.
    """
    queries = max(MIN_TILE, triton.next_power_of_2(heads))
    return _fitting(queries, 64, 4 if queries * dims <= 64 * 256 else 8, (dims, itemsize),
                    block_tokens, device)  # fmt: skip


def merged_heads(num_heads: int, value_dim: int, device: Device) -> int:
    """Return how many heads one program merges, a power of two.

    256 values wide: as a pair of warps loads them in one go. The interpreter takes all.
    """
    heads = num_heads if device is INTERPRETER else min(num_heads, max(1, 256 // value_dim))
    return int(triton.next_power_of_2(heads))


def chunk_queries(heads: int, itemsize: int) -> int:
    """Return queries x heads of a chunk's tile.

    Matrix units like 128. Float32 is computed without them, operands in registers: smaller tiles.
    """
    return 128 if itemsize == 2 else max(MIN_TILE, triton.next_power_of_2(heads))


@lru_cache
def chunk_tiling(heads: int, dims: int, itemsize: int, block_tokens: int, device: Device) -> Tiling:
    """Return the tiling of chunks, by 64 keys."""
    queries = chunk_queries(heads, itemsize)
    return _fitting(queries, 64, 8 if queries == 128 else 4, (dims, itemsize), block_tokens, device)


@lru_cache
def shared_tiling(
    heads: int, dims: int, itemsize: int, block_tokens: int, device: Device
) -> Tiling:
    """Return the tiling of what up to 16 rows share: as many of them as 128 queries take."""
    queries = min(16 * triton.next_power_of_2(heads), 128 if itemsize == 2 else 64)
    warps = 8 if queries * dims > 64 * 256 else 4
    return _fitting(queries, 64, warps, (dims, itemsize), block_tokens, device)


def _fitting(
    queries: int,
    keys: int,
    num_warps: int,
    sizes: tuple[int, int],
    block_tokens: int,
    device: Device,
) -> Tiling:
    """Return the tiling with as many stages, and then keys, as fit into shared memory."""
    dims, itemsize = sizes
    keys = tokens_of_tile(block_tokens, keys)
    room = device.shared_bytes - queries * (dims // 2 + keys) * itemsize  # queries and weights
    while keys > MIN_TILE and keys * dims * itemsize > room:
        keys //= 2
    num_stages = min(3, max(1, room // (keys * dims * itemsize)))
    return Tiling(queries, keys, num_warps, num_stages)
