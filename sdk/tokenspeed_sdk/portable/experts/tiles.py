"""Which tiles the products of experts use: a function of sizes alone, so that runs repeat.

Legend: M rows, N columns and K terms of a tile.
"""

from __future__ import annotations

from dataclasses import dataclass

DIRECT_TOKENS = 64
"""Up to here one tile has all tokens of a step, and nothing is sorted."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """Launch sizes of both products.

    Args:
        block_m, block_n, block_k: of a tile; N counts rows of the weight.
        num_warps, num_stages: of a program.
        is_sorted: a tile's rows are an expert's pairs, sorted before; else all tokens.
    """

    block_m: int
    block_n: int
    block_k: int
    num_warps: int
    num_stages: int
    is_sorted: bool


def tiles_for(tokens: int, top_k: int, num_experts: int, *, is_exact: bool) -> Tiles:
    """Return the tiles of a step.

    Args:
        is_exact: products are float32, without units for matrices.
    """
    rows = tokens * top_k / num_experts  # of an expert, on average
    if is_exact:
        block_m = 16 if tokens <= 16 else 32 if tokens <= 32 else DIRECT_TOKENS
        return Tiles(block_m, 32, 32, 4, 2, tokens > DIRECT_TOKENS)
    # Few tokens: the weights are read once, and what counts is bytes under way in each
    # multiprocessor. Narrow tiles give enough programs with one token, deep stages keep 32 KiB of
    # a program's weights under way.
    if tokens <= 16:
        return Tiles(16, 32, 128, 4, 5, False)
    if tokens <= 32:
        return Tiles(32, 32, 128, 4, 4, False)
    if tokens <= DIRECT_TOKENS:
        return Tiles(64, 64, 64, 4, 4, False)
    # Still bound by reading weights: short tiles waste less of the arithmetic.
    if rows <= 48:
        return Tiles(64, 128, 64, 4, 3, True)
    return Tiles(128, 128, 64, 8, 3, True)


def invariant_tiles(tokens: int, *, is_exact: bool) -> Tiles:
    """Return tiles in which a row is summed alike whatever the number of tokens is."""
    is_sorted = tokens > DIRECT_TOKENS
    if is_exact:
        return Tiles(DIRECT_TOKENS, 32, 32, 4, 2, is_sorted)
    return Tiles(DIRECT_TOKENS, 64, 64, 4, 4, is_sorted)
