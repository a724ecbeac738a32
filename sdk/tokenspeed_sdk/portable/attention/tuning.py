"""How attention is cut: pure functions of shapes and of the device, so that runs repeat themselves.

Nothing here depends on the other rows of a step: a row's result is the same in every batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
from triton import knobs

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
        lanes: threads of a warp.
    """

    processors: int
    shared_bytes: int
    lanes: int = 32


INTERPRETER = Device(processors=1, shared_bytes=1 << 17)
"""On the host, programs run one after another: few of them."""


def device_of(device: torch.device) -> Device:
    """Read a device's limits from triton's driver."""
    if knobs.runtime.interpret:
        return INTERPRETER
    driver = triton.runtime.driver.active
    index = driver.get_current_device() if device.index is None else device.index
    found = driver.utils.get_device_properties(index)
    lanes = driver.get_current_target().warp_size
    return Device(found["multiprocessor_count"], found["max_shared_mem"], lanes)


@dataclass(frozen=True, slots=True)
class Tiling:
    """One kernel's shapes.

    Args:
        queries: queries x heads of a tile.
        keys: of a tile.
        num_stages: how deep the compiler overlaps loads.
        resident: programs that a processor holds at once, by their shared memory.
    """

    queries: int
    keys: int
    num_warps: int
    num_stages: int
    resident: int


@dataclass(frozen=True, slots=True)
class Cut:
    """How the cache of a row is cut into parts that are attended side by side.

    Args:
        row_parts: most parts of a decode row, and of what rows share.
        row_tokens: least tokens of such a part.
        processors: that decode rows are spread over.
        chunk_programs: a chunk is cut until it alone makes so many programs.
        chunk_tokens: least tokens of a part of a chunk's cache.
        chunk_bytes: most memory of the partial results of one launch; more rows take more launches.
    """

    row_parts: int
    row_tokens: int
    processors: int
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
        processors=device.processors,
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
    """Return the tiling of decode rows: the query heads of one kv head, padded.

    The loop waits for memory: 64 keys of 128 dims and three stages keep 64 KiB in flight a program,
    and let three of them share a processor that has 228 KiB.

    Args:
        dims: of a padded key and a padded value together.
    """
    queries = max(MIN_TILE, triton.next_power_of_2(heads))
    return _fitting(queries, (dims, itemsize), block_tokens, device)


@lru_cache
def shared_tiling(
    heads: int, dims: int, itemsize: int, block_tokens: int, device: Device
) -> Tiling:
    """Return the tiling of what up to 16 rows share: as many of them as 128 queries take.

    Heads of 256 dims leave registers for 64 beside the rows' addresses.
    """
    most = 128 if itemsize == 2 and dims <= 256 else 64
    queries = min(16 * triton.next_power_of_2(heads), most)
    return _fitting(queries, (dims, itemsize), block_tokens, device)


@lru_cache
def chunk_tiling(heads: int, dims: int, itemsize: int, block_tokens: int, device: Device) -> Tiling:
    """Return the tiling of chunks."""
    return _fitting(chunk_queries(heads, itemsize), (dims, itemsize), block_tokens, device)


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


def _fitting(queries: int, sizes: tuple[int, int], block_tokens: int, device: Device) -> Tiling:
    """Return the tiling with as many keys and stages as registers and shared memory hold.

    Looked up in what the compiler makes: 64 keys of 256 dims fill the registers beside 128 queries,
    which take 256 threads. From 64 queries on, warps of 32 multiply in groups of four that read
    from shared memory: it then holds the queries too, and a stage more than is in flight. Warps of
    64 have twice the registers and less shared memory: fewer warps and stages.
    """
    dims, itemsize = sizes
    keys = tokens_of_tile(block_tokens, 64 if dims <= 256 else 32)
    threads = 256 if queries >= 128 or queries * dims > 64 * 256 else 128
    has_wide_warps = device.lanes > 32
    is_grouped = queries >= 64 and itemsize == 2 and not has_wide_warps
    used = 0 if has_wide_warps else 8 << 10  # for exchanges between warps
    if is_grouped:
        used += queries * (dims // 2) * itemsize
    while keys > MIN_TILE and keys * dims * itemsize > device.shared_bytes - used:
        keys //= 2
    buffers = (device.shared_bytes - used) // (keys * dims * itemsize)
    ahead = 0 if is_grouped else 1
    num_stages = min(2 if has_wide_warps else 3, max(1, buffers + ahead))
    used += max(1, num_stages - ahead) * keys * dims * itemsize
    resident = min(4, max(1, device.shared_bytes // used))
    return Tiling(queries, keys, max(4, threads // device.lanes), num_stages, resident)
