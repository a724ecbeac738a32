"""Sizes of the tiles that a program of the attention kernel works on, by shapes alone.

A tile is query rows (pairs of token and head) x cached tokens. It needs room for the queries and
for `num_stages` tiles of keys in shared memory, and for its sums in registers:

    64 queries x 576, 2 stages of 64 tokens x 576, bfloat16    3 x 72 KiB of 227 KiB
    64 queries x 512 float32 sums over 8 warps                 128 registers a thread
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Tiles", "padded", "tiles_for"]

LEAST_ROWS = 16
"""Of a matrix product's operand."""
LARGE = 200 << 10
"""Bytes of shared memory from which on wide keys are held in two stages."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """How one kernel is launched.

    Args:
        rows: query rows of a tile.
        tokens: cached tokens of a tile.
        num_warps, num_stages: of a program.
        programs_per_core: how many run on a core of the device at once.
    """

    rows: int
    tokens: int
    num_warps: int
    num_stages: int
    programs_per_core: int


def padded(size: int) -> int:
    """Return the size of the tile axis that holds `size` elements: a power of two, 16 at least."""
    return max(LEAST_ROWS, 1 << (size - 1).bit_length())


def tiles_for(
    *, rows: int, width: int, is_latent: bool, element_bytes: int, shared_bytes: int
) -> Tiles:
    """Choose.

    Args:
        rows: query rows that share a cached row; more than a tile has are cut.
        width: of a cached key, elements.
        is_latent: keys are values too: one tile serves as both.
        element_bytes: of the cache.
        shared_bytes: shared memory that a program can have.
    """
    if element_bytes > 2:  # products of float32 run without tensor cores: small tiles
        return Tiles(16, 32 if width <= 320 else 16, 4, 1, 1)
    if width > 320 and not is_latent:
        return Tiles(16, 16, 4, 1, 1)
    most = min(padded(rows), 64)
    if width <= 320:
        return Tiles(most, 64, 4, 2, 2)
    if shared_bytes < LARGE:
        return Tiles(most, 32, 8 if most > 32 else 4, 1, 1)
    return Tiles(most, 64, 8, 2, 1) if most > 32 else Tiles(most, 64, 4, 2, 2)
