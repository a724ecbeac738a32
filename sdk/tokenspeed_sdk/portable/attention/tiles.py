# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""The loop over tiles of cached keys, and what every kernel of attention shares around it.

Scores are kept in base 2: weights are exp2(score - top). A tile lies within one block, so that its
block is one number. Partial results are normalised, each with the base-2 logarithm of its sum.
Legend: M queries x heads of a tile, T its keys, H head dim, V value dim (both padded).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton import knobs

LOG2_E = tl.constexpr(1.4426950408889634)
IS_INTERPRETED = tl.constexpr(bool(knobs.runtime.interpret))


@triton.jit
def operand(x):
    """Return an operand of a matrix product: the interpreter multiplies float32 alone rightly."""
    return x.to(tl.float32) if IS_INTERPRETED else x


@triton.jit
def cut_evenly(first, stop, MOST_PARTS: tl.constexpr, LEAST_TILES: tl.constexpr, T: tl.constexpr):
    """Return (first tile, tiles, parts) of the positions [first, stop); numbers or vectors."""
    first_tile = first // T
    num_tiles = (stop + T - 1) // T - first_tile
    parts = tl.minimum((num_tiles + LEAST_TILES - 1) // LEAST_TILES, MOST_PARTS)
    return first_tile, num_tiles, parts


@triton.jit
def find_item(ends_R, item):
    """Return (row, place in it) of an item, given the running totals of the rows' items."""
    is_before_R = ends_R <= item
    row = tl.sum(is_before_R.to(tl.int32), axis=0)
    return row, item - tl.max(tl.where(is_before_R, ends_R, 0), axis=0)


@triton.jit
def load_tile(base, places_T, token_stride, is_read_T, D: tl.constexpr, BLOCK: tl.constexpr,
              MASKED: tl.constexpr):  # fmt: skip
    """Load (T, BLOCK) of a block; zeros where nothing is read and in the padding."""
    dims = tl.arange(0, BLOCK)
    addresses = base + places_T[:, None] * token_stride + dims[None, :]
    if MASKED:
        if BLOCK == D:
            return operand(tl.load(addresses, mask=is_read_T[:, None], other=0.0))
        is_read = is_read_T[:, None] & (dims < D)[None, :]
        return operand(tl.load(addresses, mask=is_read, other=0.0))
    if BLOCK == D:
        return operand(tl.load(addresses))
    return operand(tl.load(addresses, mask=(dims < D)[None, :], other=0.0))


@triton.jit
def load_queries(q, tokens_M, heads_M, is_used_M, q_token, q_head, H: tl.constexpr,
                 BLOCK_H: tl.constexpr):  # fmt: skip
    """Load (M, BLOCK_H) queries; zeros where a place of the tile is not used."""
    dims = tl.arange(0, BLOCK_H)
    addresses = q + (tokens_M.to(tl.int64) * q_token + heads_M * q_head)[:, None] + dims[None, :]
    return operand(tl.load(addresses, mask=is_used_M[:, None] & (dims < H)[None, :], other=0.0))


@triton.jit
def base2_scores(products_MT, scale, softcap, SOFTCAP: tl.constexpr):
    """Return scores in base 2, capped where the layer does so."""
    if SOFTCAP:
        share = products_MT * (scale / softcap)
        small = tl.exp2(tl.abs(share) * (-2.0 * LOG2_E))
        tanh = (1.0 - small) / (1.0 + small)
        return tl.where(share < 0, -tanh, tanh) * (softcap * LOG2_E)
    return products_MT * (scale * LOG2_E)


@triton.jit
def attend_tiles(
    q_MH,
    acc_MV,
    top_M,
    sum_M,
    k,
    v,
    table,
    first_tile,
    stop_tile,
    first,
    stop,
    from_M,
    to_M,
    k_block,
    k_token,
    v_block,
    v_token,
    scale,
    softcap,
    H: tl.constexpr,
    V: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_V: tl.constexpr,
    T: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    MASKED: tl.constexpr,
    OWN_RANGES: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """Add the tiles [first_tile, stop_tile) to the running result of a tile of queries.

    Args:
        acc_MV, top_M, sum_M: weighted values, largest score and sum of weights so far.
        k, v: of the kv head, at block 0.
        table: of the row.
        first, stop: where MASKED, positions outside [first, stop) are not read.
        from_M, to_M: where MASKED and OWN_RANGES, each query sees [from, to) of these.
    """
    # A tile's block is read one tile ahead: a load that waited for it within the same round would
    # halve the depth at which the compiler overlaps the loads of keys and values.
    last_tile = tl.maximum(stop_tile - 1, 0)
    block = tl.load(table + tl.minimum(first_tile, last_tile) * T // BLOCK_TOKENS).to(tl.int64)
    for tile in range(first_tile, stop_tile):
        start = tile * T
        places_T = start % BLOCK_TOKENS + tl.arange(0, T)
        keys_T = start + tl.arange(0, T)
        is_read_T = (keys_T >= first) & (keys_T < stop)
        k_TH = load_tile(k + block * k_block, places_T, k_token, is_read_T, H, BLOCK_H, MASKED)
        products_MT = tl.dot(q_MH, tl.trans(k_TH), input_precision="ieee")
        scores_MT = base2_scores(products_MT, scale, softcap, SOFTCAP)
        if MASKED:
            is_seen = is_read_T[None, :]
            if OWN_RANGES:
                is_seen &= (keys_T[None, :] >= from_M[:, None]) & (keys_T[None, :] < to_M[:, None])
            scores_MT = tl.where(is_seen, scores_MT, float("-inf"))
        new_top_M = tl.maximum(top_M, tl.max(scores_MT, axis=1))
        # A query that has seen nothing yet has the top -inf, which must not meet itself.
        base_M = tl.where(new_top_M == float("-inf"), 0.0, new_top_M) if OWN_RANGES else new_top_M
        weights_MT = tl.exp2(scores_MT - base_M[:, None])
        kept_M = tl.exp2(top_M - base_M)
        sum_M = sum_M * kept_M + tl.sum(weights_MT, axis=1)
        v_TV = load_tile(v + block * v_block, places_T, v_token, is_read_T, V, BLOCK_V, MASKED)
        weights_MT = operand(weights_MT.to(v.dtype.element_ty))
        acc_MV = tl.dot(weights_MT, v_TV, acc_MV * kept_M[:, None], input_precision="ieee")
        top_M = new_top_M
        block = tl.load(table + tl.minimum(tile + 1, last_tile) * T // BLOCK_TOKENS).to(tl.int64)
    return acc_MV, top_M, sum_M


@triton.jit
def store_parts(out, lse, acc_MV, top_M, sum_M, slots_M, heads_M, is_used_M,
                N: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr):  # fmt: skip
    """Store partial results: out (slots, N, V) float32 and lse (slots, N), -inf: nothing seen."""
    lines_M = slots_M.to(tl.int64) * N + heads_M
    has_seen_M = sum_M > 0
    dims = tl.arange(0, BLOCK_V)
    result_MV = acc_MV / tl.where(has_seen_M, sum_M, 1.0)[:, None]
    is_stored = is_used_M[:, None] & (dims < V)[None, :]
    tl.store(out + lines_M[:, None] * V + dims[None, :], result_MV, mask=is_stored)
    lse_M = tl.where(has_seen_M, top_M + tl.log2(tl.where(has_seen_M, sum_M, 1.0)), float("-inf"))
    tl.store(lse + lines_M, lse_M, mask=is_used_M)
