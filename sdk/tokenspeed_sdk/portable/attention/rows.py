# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Decode rows: each row's cache is cut into parts; programs take them one after another.

How many parts there are is known on the device alone: every program adds up the rows' lengths and
finds its own, so that a launch serves whatever the rows hold. Partial results are merged after.
Legend: R rows, Ti tiles of rows that share their beginning, M queries x heads of a tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from tokenspeed_sdk.portable.attention.tiles import (
    attend_tiles,
    cut_evenly,
    find_item,
    load_queries,
    store_parts,
)

if TYPE_CHECKING:
    import torch

    from tokenspeed_sdk import KVView, SharedPrefixes
    from tokenspeed_sdk.portable.attention.geometry import Geometry, Scores
    from tokenspeed_sdk.portable.attention.steps import DeviceRows

SHARED_ROWS = tl.constexpr(16)
_NOT_SPECIALISED = ["num_rows", "num_tiles", "table_line", "window", "slots_a_row"]


@triton.jit(do_not_specialize=_NOT_SPECIALISED)
def attention_rows(
    out,
    lse,
    q,
    k,
    v,
    tables,
    lines_R,
    lengths_R,
    covered_R,
    num_rows,
    table_line,
    window,
    slots_a_row,
    q_token,
    q_head,
    k_block,
    k_head,
    k_token,
    v_block,
    v_head,
    v_token,
    scale,
    softcap,
    N: tl.constexpr,
    G: tl.constexpr,
    HEADS: tl.constexpr,
    H: tl.constexpr,
    V: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_R: tl.constexpr,
    M: tl.constexpr,
    T: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    MOST_PARTS: tl.constexpr,
    LEAST_TILES: tl.constexpr,
    SHARED: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """Attend each row to what is its own of its cache: out (R x slots a row, N, V), lse beside."""
    rows = tl.arange(0, BLOCK_R)
    stops = tl.load(lengths_R + rows, mask=rows < num_rows, other=0)
    firsts = tl.where(window > 0, tl.maximum(stops - window, 0), 0)
    if SHARED:
        firsts = tl.load(covered_R + rows, mask=rows < num_rows, other=0)
    _firsts, _lengths, parts_R = cut_evenly(firsts, stops, MOST_PARTS, LEAST_TILES, T)
    ends_R = tl.cumsum(parts_R, axis=0)
    groups_a_kv: tl.constexpr = (G + HEADS - 1) // HEADS
    groups: tl.constexpr = N // G * groups_a_kv
    places_M = tl.arange(0, M)
    for item in range(tl.program_id(0), tl.max(ends_R, axis=0) * groups, tl.num_programs(0)):
        row, part = find_item(ends_R, item // groups)
        kv_head = item % groups // groups_a_kv
        own_M = item % groups_a_kv * HEADS + places_M
        is_used_M = (places_M < HEADS) & (own_M < G)
        heads_M = kv_head * G + own_M
        rows_M = tl.full([M], 0, tl.int32) + row
        stop = tl.load(lengths_R + row)
        first = tl.where(window > 0, tl.maximum(stop - window, 0), 0)
        if SHARED:
            first = tl.load(covered_R + row)
        first_tile, num_tiles, parts = cut_evenly(first, stop, MOST_PARTS, LEAST_TILES, T)
        acc_MV, top_M, sum_M = attend_tiles(
            load_queries(q, rows_M, heads_M, is_used_M, q_token, q_head, H, BLOCK_H),
            tl.full([M, BLOCK_V], 0.0, tl.float32),
            tl.full([M], float("-inf"), tl.float32),
            tl.full([M], 0.0, tl.float32),
            k + kv_head * k_head,
            v + kv_head * v_head,
            tables + tl.load(lines_R + row).to(tl.int64) * table_line,
            first_tile + part * num_tiles // parts,
            first_tile + (part + 1) * num_tiles // parts,
            first,
            stop,
            rows_M,
            rows_M,
            k_block,
            k_token,
            v_block,
            v_token,
            scale,
            softcap,
            H,
            V,
            BLOCK_H,
            BLOCK_V,
            T,
            BLOCK_TOKENS,
            True,
            False,
            SOFTCAP,
        )
        slots_M = rows_M * slots_a_row + part
        store_parts(out, lse, acc_MV, top_M, sum_M, slots_M, heads_M, is_used_M, N, V, BLOCK_V)


@triton.jit(do_not_specialize=_NOT_SPECIALISED)
def attention_shared(
    out,
    lse,
    q,
    k,
    v,
    tables,
    lines_R,
    order_R,
    tiles,
    num_tiles,
    table_line,
    slots_a_row,
    q_token,
    q_head,
    k_block,
    k_head,
    k_token,
    v_block,
    v_head,
    v_token,
    scale,
    softcap,
    N: tl.constexpr,
    G: tl.constexpr,
    HEADS: tl.constexpr,
    H: tl.constexpr,
    V: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_TI: tl.constexpr,
    M: tl.constexpr,
    T: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    MOST_PARTS: tl.constexpr,
    LEAST_TILES: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """Attend the rows of each tile together to what they share; slots [MOST_PARTS, 2 x) of each."""
    rows_at_once: tl.constexpr = M // HEADS
    entries = tl.arange(0, BLOCK_TI)
    is_tile = entries < num_tiles
    counts = tl.load(tiles + entries * 3 + 1, mask=is_tile, other=0)
    stops = tl.load(tiles + entries * 3 + 2, mask=is_tile, other=0)
    _firsts, _lengths, parts_Ti = cut_evenly(stops * 0, stops, MOST_PARTS, LEAST_TILES, T)
    ends_Ti = tl.cumsum(parts_Ti * ((counts + rows_at_once - 1) // rows_at_once), axis=0)
    groups_a_kv: tl.constexpr = (G + HEADS - 1) // HEADS
    groups: tl.constexpr = N // G * groups_a_kv
    places_M = tl.arange(0, M)
    for item in range(tl.program_id(0), tl.max(ends_Ti, axis=0) * groups, tl.num_programs(0)):
        tile, place = find_item(ends_Ti, item // groups)
        first_place = tl.load(tiles + tile * 3)
        count = tl.load(tiles + tile * 3 + 1)
        stop = tl.load(tiles + tile * 3 + 2)
        _first, num_key_tiles, parts = cut_evenly(0, stop, MOST_PARTS, LEAST_TILES, T)
        part = place % parts
        row_M = place // parts * rows_at_once + places_M // HEADS
        kv_head = item % groups // groups_a_kv
        own_M = item % groups_a_kv * HEADS + places_M % HEADS
        is_used_M = (places_M < rows_at_once * HEADS) & (row_M < count) & (own_M < G)
        heads_M = kv_head * G + own_M
        rows_M = tl.load(order_R + first_place + row_M, mask=is_used_M, other=0)
        line = tl.load(lines_R + tl.load(order_R + first_place))
        acc_MV, top_M, sum_M = attend_tiles(
            load_queries(q, rows_M, heads_M, is_used_M, q_token, q_head, H, BLOCK_H),
            tl.full([M, BLOCK_V], 0.0, tl.float32),
            tl.full([M], float("-inf"), tl.float32),
            tl.full([M], 0.0, tl.float32),
            k + kv_head * k_head,
            v + kv_head * v_head,
            tables + line.to(tl.int64) * table_line,
            part * num_key_tiles // parts,
            (part + 1) * num_key_tiles // parts,
            0,
            stop,
            rows_M,
            rows_M,
            k_block,
            k_token,
            v_block,
            v_token,
            scale,
            softcap,
            H,
            V,
            BLOCK_H,
            BLOCK_V,
            T,
            BLOCK_TOKENS,
            False,  # whole blocks are shared, and all rows see them
            False,
            SOFTCAP,
        )
        slots_M = rows_M * slots_a_row + MOST_PARTS + part
        store_parts(out, lse, acc_MV, top_M, sum_M, slots_M, heads_M, is_used_M, N, V, BLOCK_V)


def attend_rows(
    parts: tuple[torch.Tensor, torch.Tensor],
    q_TNH: torch.Tensor,
    kv: KVView,
    rows: DeviceRows,
    geometry: Geometry,
    scores: Scores,
) -> None:
    """Attend every row to the part of its cache that it shares with none.

    Args:
        parts: out (R x slots a row, N, V) and lse (R x slots a row, N) float32, written in place.
        q_TNH: the rows' queries first; the dims of a head contiguous.
    """
    tiling = geometry.row_tiling(kv)
    cut, (groups, constants) = geometry.cut, geometry.constants(kv)
    covered = rows.shared.tokens_R if rows.shared else rows.lengths_R
    items = rows.num_rows * groups * cut.row_parts
    attention_rows[(min(items, cut.processors * tiling.resident),)](
        *parts,
        q_TNH,
        kv.k,
        kv.v,
        rows.tables,
        rows.lines_R,
        rows.lengths_R,
        covered,
        rows.num_rows,
        rows.tables.stride(0),
        rows.window,
        rows.slots_a_row(cut),
        *q_TNH.stride()[:2],
        *kv.k.stride()[:3],
        *kv.v.stride()[:3],
        scores.scale,
        scores.softcap,
        **constants,
        BLOCK_R=max(16, triton.next_power_of_2(rows.num_rows)),
        M=tiling.queries,
        T=tiling.keys,
        MOST_PARTS=cut.row_parts,
        LEAST_TILES=cut.least_tiles(tiling),
        SHARED=rows.shared is not None,
        SOFTCAP=bool(scores.softcap),
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )


def attend_shared(
    parts: tuple[torch.Tensor, torch.Tensor],
    q_TNH: torch.Tensor,
    kv: KVView,
    rows: DeviceRows,
    shared: SharedPrefixes,
    geometry: Geometry,
    scores: Scores,
) -> None:
    """Attend tiles of rows to what they share; see `attend_rows`."""
    tiling = geometry.shared_tiling(kv)
    cut, (groups, constants) = geometry.cut, geometry.constants(kv)
    num_tiles = shared.tiles.shape[0]
    items = rows.num_rows * groups * cut.row_parts  # no row is in two tiles
    attention_shared[(min(items, cut.processors * tiling.resident),)](
        *parts,
        q_TNH,
        kv.k,
        kv.v,
        rows.tables,
        rows.lines_R,
        shared.order_R,
        shared.tiles,
        num_tiles,
        rows.tables.stride(0),
        rows.slots_a_row(cut),
        *q_TNH.stride()[:2],
        *kv.k.stride()[:3],
        *kv.v.stride()[:3],
        scores.scale,
        scores.softcap,
        **constants,
        BLOCK_TI=max(16, triton.next_power_of_2(num_tiles)),
        M=tiling.queries,
        T=tiling.keys,
        MOST_PARTS=cut.row_parts,
        LEAST_TILES=cut.least_tiles(tiling),
        SOFTCAP=bool(scores.softcap),
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
