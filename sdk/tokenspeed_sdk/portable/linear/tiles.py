"""Which tiles products of few rows use: a function of sizes alone, so that runs repeat.

Legend: M rows, O outputs and K terms of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

FEW_ROWS = 16
"""Rows of a dense product up to which reading the weight is all that counts; more are torch's."""
FEW_HEAD_ROWS = 64
"""The same of products head by head, of which torch's batched product makes less."""
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


ROOMY_BYTES = 160 << 10
"""Shared memory with which a program's stages may be large; some GPUs have 64 KiB."""
DENSE_VECTOR_TILES = Tiles(1, 8, 512, 4, 3)
"""Of one row: 24 KiB of a program's weights are under way."""


def skinny_tiles(rows: int, outputs: int, *, shared_bytes: int, is_exact: bool) -> Tiles:
    """Return the tiles of a dense product; the same for all rows that fit one tile.

    Those of roomy devices were the fastest of 170 at the shapes of an 8B model on an H200.

    Args:
        outputs: of all heads together.
        shared_bytes: of one program, at most.
        is_exact: products are float32, without units for matrices.
    """
    block_m = 16 if rows <= 16 else 32 if rows <= 32 else 64
    if is_exact:
        return Tiles(min(block_m, 32), 16, 64, 4, 3)
    if shared_bytes < ROOMY_BYTES:
        # 16 outputs make enough programs of 4096 outputs for every core, and four stages of 256
        # inputs keep 24 KiB of each program's weights under way; of many outputs a program has
        # more, so that rows of x are read less often.
        if block_m > 16:
            return Tiles(32, 32 if outputs >= 16384 else 16, 256, 4, 3)
        if outputs < 16384:
            return Tiles(16, 16, 256, 4, 5 if outputs < 2048 else 4)
        return Tiles(16, 32, 256, 4, 3)
    if block_m == 64:
        if outputs <= 4096:
            return Tiles(64, 32, 128, 4, 6)
        return Tiles(64, 64, 128, 4, 6) if outputs < 16384 else Tiles(64, 128, 64, 4, 4)
    if outputs >= 16384:
        return Tiles(block_m, 64, 128, 4, 3)
    if outputs < 2048:
        return Tiles(block_m, 16, 256, 4, 5 if block_m == 16 else 4)
    return Tiles(block_m, 32, 256, 4, 4)


def packed_tiles(rows: int) -> Tiles:
    """Return the tiles of a product with an encoded weight, decoded for the units for matrices.

    Decoded numbers take registers: tiles are smaller than a dense weight's.
    """
    if rows <= 16:
        return Tiles(16, 32, 256, 4, 4)
    if rows <= 32:
        return Tiles(32, 32, 256, 4, 3)
    return Tiles(64, 64, 128, 8, 3)
