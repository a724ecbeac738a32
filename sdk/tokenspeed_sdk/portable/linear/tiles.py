"""Which tiles products of few rows use: a function of sizes alone, so that runs repeat.

Legend: M rows, O outputs and K terms of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

FEW_ROWS = 16
"""Rows of a dense product up to which reading the weight is all that counts; more are torch's."""
FEW_HEAD_ROWS = 64
"""The same of products head by head, of which torch's batched product makes less."""
VECTOR_ROWS = 4
"""Rows up to which each multiplies an encoded weight alone: it lies in the cache for all of them,
and decoded numbers are used in the registers where they are."""
FEW_PACKED_ROWS = 64
"""Rows up to which an encoded weight is decoded in registers; for more it is expanded first."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Launch sizes of a product of few rows."""

    block_m: int
    block_o: int
    block_k: int
    num_warps: int
    num_stages: int


def skinny_tiles(rows: int, outputs: int, inputs: int, *, is_exact: bool) -> Tiles:
    """Return the tiles of a dense product; the same for all rows that fit one tile.

    Args:
        outputs: of all heads together.
        is_exact: products are float32, without units for matrices.
    """
    block_m = 16 if rows <= 16 else 32
    if is_exact:
        return Tiles(block_m, 16, 64, 4, 3)
    # 16 outputs make enough programs of 4096 outputs for every multiprocessor, and four stages of
    # 256 inputs keep 24 KiB of each program's weights under way; of fewer outputs a program keeps
    # more. Of many, each has more of them, so that rows of x are read less often. No tile takes
    # more than 64 KiB of shared memory, which some GPUs have.
    if outputs < 2048:
        return Tiles(block_m, 16, 256, 4, 5 if block_m == 16 else 3)
    if outputs < 16384:
        return Tiles(block_m, 16, 256, 4, 4 if block_m == 16 else 3)
    return Tiles(block_m, 32, 256, 4, 3)


def packed_tiles(rows: int) -> Tiles:
    """Return the tiles of a product with an encoded weight, decoded for the units for matrices.

    Decoded numbers take registers: tiles are smaller than a dense weight's.
    """
    if rows <= 16:
        return Tiles(16, 32, 256, 4, 4)
    if rows <= 32:
        return Tiles(32, 32, 256, 4, 3)
    return Tiles(64, 64, 128, 8, 3)


VECTOR_TILES = Tiles(1, 8, 1024, 4, 3)
"""Tiles of `VECTOR_ROWS` rows or less: 4096 outputs keep 4 MiB of 4 bit numbers under way."""
