# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Kernel of paged attention in parts of equal work.

An item is one tile of query rows with all that it sees; a part is a run of tiles of cached tokens
over one or more items, one program. An item that lies in one part is written at once, of any other
each part leaves its share, to be joined by `merge`.

    items      |----- 0 -----|-- 1 --|---------- 2 ----------|- 3 -|
    parts      |---- 0 ----|---- 1 ----|---- 2 ----|---- 3 ---|-4-|
    shares          0a       0b      2a      2b        2c

Source: FlashAttention-2, Dao 2023; stream-K, Osama et al. 2023, for the parts; FlashMLA's
description (DeepSeek 2025) for one tile of latents as keys and as values.
Legend: M query rows of a tile, S cached tokens of a tile, V value dims, W further key dims.
"""

from __future__ import annotations

import triton
import triton.language as tl

ITEM_FIELDS = 5
"""Of an item made on the host: table line, its row's first query token and their number, cached
tokens before them, first query row."""
PART_FIELDS = 3
"""Of a part made on the host: first item, first tile in it, tiles."""
ITEM_WIDTH = tl.constexpr(ITEM_FIELDS)
PART_WIDTH = tl.constexpr(PART_FIELDS)
LEAST_TILES = 4
"""Of a part: below this its share costs more than it saves."""
FEWEST = tl.constexpr(LEAST_TILES)


@triton.jit
def part_of_row(tiles, PIECES: tl.constexpr):
    """Return the tiles of each of a row's parts, where rows are cut alone."""
    return tl.maximum(tl.cdiv(tiles, PIECES), FEWEST)


@triton.jit
def tiles_of_rows(lengths, num_rows, ROWS: tl.constexpr, S: tl.constexpr):
    """Return (row numbers, tiles of each row of one query token)."""
    index = tl.arange(0, ROWS)
    length = tl.load(lengths + index, mask=index < num_rows, other=0)
    return index, tl.cdiv(length, S)


@triton.jit
def _tile_entries(table, tile, stop, S: tl.constexpr, ENTRY: tl.constexpr):
    """Return the table's entry of a tile, or those of its tokens where entries are smaller."""
    if ENTRY >= S:
        entry = tl.load(table + tile * S // ENTRY)
    else:
        token = tile * S + tl.arange(0, S)
        entry = tl.load(table + token // ENTRY, mask=token < stop, other=0)
    return entry.to(tl.int64)


@triton.jit
def _rows_of_tile(
    cache, entry, tile, block, TOKEN: tl.constexpr, S: tl.constexpr, ENTRY: tl.constexpr
):
    """Return the addresses of a tile's tokens; offsets from the cache's beginning are 64-bit."""
    tokens_S = tl.arange(0, S)
    if ENTRY >= S:
        rows = cache + (entry * block + tile * S % ENTRY * TOKEN) + tokens_S * TOKEN
    else:
        rows = cache + (entry * block + (tile * S + tokens_S) % ENTRY * TOKEN)
    return rows


@triton.jit
def attend_parts(
    q,
    k,
    v,
    out,
    shares,
    peaks,
    lengths,
    lines,
    tables,
    items,
    parts,
    scale_log2,
    num_rows,
    num_parts,
    group,
    query_tiles,
    q_token,
    q_head,
    k_block,
    k_head,
    v_block,
    v_head,
    out_token,
    out_head,
    table_line,
    K_TOKEN: tl.constexpr,
    V_TOKEN: tl.constexpr,
    VALUES: tl.constexpr,
    REST: tl.constexpr,
    KEYS: tl.constexpr,
    V: tl.constexpr,
    D: tl.constexpr,
    W: tl.constexpr,
    M: tl.constexpr,
    S: tl.constexpr,
    ENTRY: tl.constexpr,
    ROWS: tl.constexpr,
    PIECES: tl.constexpr,
    SHARES: tl.constexpr,
    ON_DEVICE: tl.constexpr,
    LATENT: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Attend one part.

    Args:
        shares, peaks: (programs x SHARES, kv heads, M, V) and (.., M) float32: what a part has of
            an item that others have too, and the base-2 logarithm of its sum of exponentials.
        lengths, lines: ON_DEVICE: per row of one token its length and its line of `tables`.
        items, parts: otherwise: see ITEM_FIELDS, PART_FIELDS.
        scale_log2: of the scores, to base 2.
        group: query heads of a kv head.
        query_tiles: ON_DEVICE: tiles that a token's query heads are cut into.
        K_TOKEN, V_TOKEN: strides between tokens: constants, so that the addresses of a tile are one
            register and many constants beside it.
        VALUES, KEYS, REST: dims of a value, of the first tile of a key and of the second; V, D and
            W are these padded.
        PIECES: most parts of an item, where items are cut alone; 0: parts are cut from all.
        LATENT: values are the first tile of the keys: V = D.
        WIDE: products are taken of float32, whatever the dtype (see `launch`).
    """
    OPERAND: tl.constexpr = tl.float32 if WIDE else q.dtype.element_ty
    program = tl.program_id(0)
    kv_head = tl.program_id(1)
    num_kv_heads = tl.num_programs(1)
    rows_M = tl.arange(0, M)
    tokens_S = tl.arange(0, S)
    dims_V = tl.arange(0, V)
    dims_D = tl.arange(0, D)
    dims_W = tl.arange(0, W)
    if ON_DEVICE:
        part = program // query_tiles
        query_tile = program % query_tiles
        index, tiles = tiles_of_rows(lengths, num_rows, ROWS, S)
        if PIECES:
            item = part // PIECES
            own = tl.sum(tl.where(index == item, tiles, 0))
            size = part_of_row(own, PIECES)
            first = (part % PIECES) * size
            left = tl.minimum(size, own - first)
        else:
            ends = tl.cumsum(tiles, 0)
            total = tl.sum(tiles)
            size = tl.maximum(tl.cdiv(total, num_parts), FEWEST)
            begin = part * size
            left = tl.minimum(size, total - begin)
            item = tl.sum((ends <= begin).to(tl.int32))
            first = begin - tl.sum(tl.where(index < item, tiles, 0))
    else:
        query_tile = 0
        item = tl.load(parts + program * PART_WIDTH)
        first = tl.load(parts + program * PART_WIDTH + 1)
        left = tl.load(parts + program * PART_WIDTH + 2)
    place = program * SHARES
    k += kv_head.to(tl.int64) * k_head
    v += kv_head.to(tl.int64) * v_head
    while left > 0:
        if ON_DEVICE:
            line = tl.load(lines + item)
            query_start = item
            num_queries = 1
            context = tl.load(lengths + item) - 1
            first_row = query_tile * M
        else:
            line = tl.load(items + item * ITEM_WIDTH)
            query_start = tl.load(items + item * ITEM_WIDTH + 1)
            num_queries = tl.load(items + item * ITEM_WIDTH + 2)
            context = tl.load(items + item * ITEM_WIDTH + 3)
            first_row = tl.load(items + item * ITEM_WIDTH + 4)
        token_M = (first_row + rows_M) // group
        head_M = kv_head * group + (first_row + rows_M) % group
        is_row_M = token_M < num_queries
        at_M = (query_start + token_M).to(tl.int64)
        q_M = q + at_M * q_token + head_M * q_head
        q_MD = tl.load(
            q_M[:, None] + dims_D, mask=is_row_M[:, None] & (dims_D < KEYS), other=0.0
        ).to(OPERAND)
        if REST:
            q_MW = tl.load(
                q_M[:, None] + KEYS + dims_W, mask=is_row_M[:, None] & (dims_W < REST), other=0.0
            ).to(OPERAND)
        stop = context + 1 + tl.minimum((first_row + M - 1) // group, num_queries - 1)
        item_tiles = tl.cdiv(stop, S)
        count = tl.minimum(left, item_tiles - first)
        table = tables + line.to(tl.int64) * table_line
        peak_M = tl.full((M,), float("-inf"), tl.float32)
        sum_M = tl.zeros((M,), tl.float32)
        out_MV = tl.zeros((M, V), tl.float32)
        entry = _tile_entries(table, first, stop, S, ENTRY)
        for tile in range(first, first + count):
            # The next tile's entry is asked for a tile ahead: its keys' addresses hang on it.
            now = entry
            entry = _tile_entries(table, tl.minimum(tile + 1, item_tiles - 1), stop, S, ENTRY)
            token_S = tile * S + tokens_S
            is_key_S = token_S < stop
            k_S = _rows_of_tile(k, now, tile, k_block, K_TOKEN, S, ENTRY)
            k_SD = tl.load(
                k_S[:, None] + dims_D, mask=is_key_S[:, None] & (dims_D < KEYS), other=0.0
            ).to(OPERAND)
            scores_MS = tl.dot(q_MD, tl.trans(k_SD), input_precision="ieee")
            if REST:
                k_SW = tl.load(
                    k_S[:, None] + KEYS + dims_W,
                    mask=is_key_S[:, None] & (dims_W < REST),
                    other=0.0,
                ).to(OPERAND)
                scores_MS = tl.dot(q_MW, tl.trans(k_SW), scores_MS, input_precision="ieee")
            is_seen_MS = token_S[None, :] <= context + token_M[:, None]
            scores_MS = tl.where(is_seen_MS, scores_MS * scale_log2, float("-inf"))
            higher_M = tl.maximum(peak_M, tl.max(scores_MS, 1))
            base_M = tl.where(higher_M == float("-inf"), 0.0, higher_M)  # nothing seen so far
            weights_MS = tl.exp2(scores_MS - base_M[:, None])
            kept_M = tl.exp2(peak_M - base_M)
            sum_M = sum_M * kept_M + tl.sum(weights_MS, 1)
            out_MV = out_MV * kept_M[:, None]
            if LATENT:
                v_SV = k_SD
            else:
                v_S = _rows_of_tile(v, now, tile, v_block, V_TOKEN, S, ENTRY)
                v_SV = tl.load(
                    v_S[:, None] + dims_V, mask=is_key_S[:, None] & (dims_V < VALUES), other=0.0
                ).to(OPERAND)
            out_MV = tl.dot(weights_MS.to(OPERAND), v_SV, out_MV, input_precision="ieee")
            peak_M = higher_M
        out_MV = out_MV / tl.where(sum_M > 0, sum_M, 1.0)[:, None]
        if count == item_tiles:
            out_M = out + at_M * out_token + head_M * out_head
            tl.store(
                out_M[:, None] + dims_V,
                out_MV.to(out.dtype.element_ty),
                mask=is_row_M[:, None] & (dims_V < VALUES),
            )
        else:
            share_M = (place * num_kv_heads + kv_head).to(tl.int64) * M + rows_M
            tl.store(shares + share_M[:, None] * V + dims_V, out_MV)
            tl.store(peaks + share_M, peak_M + tl.log2(tl.where(sum_M > 0, sum_M, 1.0)))
        left -= count
        first = 0
        item += 1
        place = program * SHARES + 1  # the one other item that a part can have a share of: its last
