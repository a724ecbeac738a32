# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Kernel that stores the step's keys, and values where they are no part of them, in their cells."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def write_cells(
    k,
    v,
    k_cache,
    v_cache,
    positions,
    lines,
    tables,
    k_from,
    v_from,
    k_from_head,
    v_from_head,
    k_block,
    k_head,
    k_token,
    v_block,
    v_head,
    v_token,
    table_line,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    WIDTH: tl.constexpr,
    ENTRY: tl.constexpr,
    LATENT: tl.constexpr,
):
    """Store one head of one token.

    Args:
        positions: (T,) int64.
        lines: (T,) int32: line of `tables` of each token's row.
        k_from, v_from: strides of `k` and `v` between tokens.
        WIDTH: of the tile: as wide as keys and values.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    position = tl.load(positions + token)
    line = tl.load(lines + token).to(tl.int64)
    block = tl.load(tables + line * table_line + position // ENTRY).to(tl.int64)
    within = position % ENTRY
    dims = tl.arange(0, WIDTH)
    key = tl.load(k + token * k_from + head * k_from_head + dims, mask=dims < KEYS)
    cell = k_cache + block * k_block + head * k_head + within * k_token
    tl.store(cell + dims, key.to(k_cache.dtype.element_ty), mask=dims < KEYS)
    if not LATENT:
        value = tl.load(v + token * v_from + head * v_from_head + dims, mask=dims < VALUES)
        cell = v_cache + block * v_block + head * v_head + within * v_token
        tl.store(cell + dims, value.to(v_cache.dtype.element_ty), mask=dims < VALUES)
