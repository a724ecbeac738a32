# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Rows of many query tokens: tiles of (tokens x query heads of one kv head) over the row's cache.

A tile's keys come in three runs: those that only some queries see any more (a window), those that
all see, read without a mask, and those around the diagonal. Where a row makes too few programs, its
cache is cut into parts, which are merged after.
Legend: C chunks, M queries x heads of a tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from tokenspeed_sdk.portable.attention.tiles import (
    LOG2_E,
    attend_tiles,
    find_item,
    load_queries,
    store_parts,
)

if TYPE_CHECKING:
    import torch

    from tokenspeed_sdk import KVView
    from tokenspeed_sdk.portable.attention.geometry import Geometry, Scores
    from tokenspeed_sdk.portable.attention.steps import Chunks, Launch

CHUNK_FIELDS = 8
"""Numbers of a chunk: [first token, tokens, context, end of its items, parts, first slot,
end of its split tokens, line of the tables]."""
FIELDS = tl.constexpr(CHUNK_FIELDS)


@triton.jit(do_not_specialize=["num_chunks", "table_line", "window"])
def attention_chunks(
    out,
    parts_out,
    parts_lse,
    q,
    k,
    v,
    sinks_N,
    tables,
    chunks,
    num_chunks,
    table_line,
    window,
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
    BLOCK_C: tl.constexpr,
    M: tl.constexpr,
    T: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    WINDOW: tl.constexpr,
    SINKS: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """Attend one tile of queries to one part of its keys; a whole one goes to out (T, N, V)."""
    lines = tl.arange(0, BLOCK_C)
    ends_C = tl.load(chunks + lines * FIELDS + 3, mask=lines < num_chunks, other=0x7FFFFFFF)
    chunk, item = find_item(ends_C, tl.program_id(0))
    fields = chunks + chunk * FIELDS
    first_token = tl.load(fields)
    num_tokens = tl.load(fields + 1)
    context = tl.load(fields + 2)
    parts = tl.load(fields + 4)

    tokens_at_once: tl.constexpr = M // HEADS
    groups_a_kv: tl.constexpr = (G + HEADS - 1) // HEADS
    kv_head = tl.program_id(1) // groups_a_kv
    places_M = tl.arange(0, M)
    own_M = tl.program_id(1) % groups_a_kv * HEADS + places_M % HEADS
    heads_M = kv_head * G + own_M
    # The last tiles see the most keys: they start first, so that the end of the launch is even.
    start = ((num_tokens - 1) // tokens_at_once - item // parts) * tokens_at_once
    part = item % parts
    token_M = start + places_M // HEADS
    is_used_M = (places_M < tokens_at_once * HEADS) & (token_M < num_tokens) & (own_M < G)
    tokens_M = first_token + token_M

    # Positions: [first, stop) are seen by some query of the tile, [all_from, all_to) by each.
    to_M = context + token_M + 1
    from_M = tl.maximum(to_M - window, 0) if WINDOW else to_M * 0
    all_to = context + start + 1
    stop = context + tl.minimum(start + tokens_at_once, num_tokens)
    first = tl.maximum(all_to - window, 0) if WINDOW else 0
    all_from = tl.maximum(stop - window, 0) if WINDOW else 0

    first_tile = first // T
    num_tiles = (stop + T - 1) // T - first_tile
    part_start = first_tile + part * num_tiles // parts
    part_stop = first_tile + (part + 1) * num_tiles // parts
    full_start = tl.minimum(tl.maximum((all_from + T - 1) // T, part_start), part_stop)
    full_stop = tl.minimum(tl.maximum(all_to // T, full_start), part_stop)

    q_MH = load_queries(q, tokens_M, heads_M, is_used_M, q_token, q_head, H, BLOCK_H)
    acc_MV = tl.full([M, BLOCK_V], 0.0, tl.float32)
    top_M = tl.full([M], float("-inf"), tl.float32)
    sum_M = tl.full([M], 0.0, tl.float32)
    k += kv_head * k_head
    v += kv_head * v_head
    table = tables + tl.load(fields + 7).to(tl.int64) * table_line
    if WINDOW:
        acc_MV, top_M, sum_M = attend_tiles(
            q_MH, acc_MV, top_M, sum_M, k, v, table, part_start, full_start, first, stop,
            from_M, to_M, k_block, k_token, v_block, v_token, scale, softcap,
            H, V, BLOCK_H, BLOCK_V, T, BLOCK_TOKENS, True, True, SOFTCAP,
        )  # fmt: skip
    acc_MV, top_M, sum_M = attend_tiles(
        q_MH, acc_MV, top_M, sum_M, k, v, table, full_start, full_stop, first, stop,
        from_M, to_M, k_block, k_token, v_block, v_token, scale, softcap,
        H, V, BLOCK_H, BLOCK_V, T, BLOCK_TOKENS, False, True, SOFTCAP,
    )  # fmt: skip
    acc_MV, top_M, sum_M = attend_tiles(
        q_MH, acc_MV, top_M, sum_M, k, v, table, full_stop, part_stop, first, stop,
        from_M, to_M, k_block, k_token, v_block, v_token, scale, softcap,
        H, V, BLOCK_H, BLOCK_V, T, BLOCK_TOKENS, True, True, SOFTCAP,
    )  # fmt: skip

    if parts > 1:
        slots_M = tl.load(fields + 5) + token_M * parts + part
        store_parts(
            parts_out, parts_lse, acc_MV, top_M, sum_M, slots_M, heads_M, is_used_M, N, V, BLOCK_V
        )
    else:
        if SINKS:
            sinks_M = tl.load(sinks_N + heads_M, mask=is_used_M, other=0.0).to(tl.float32) * LOG2_E
            # Queries have seen their own key, so that top is a number.
            new_top_M = tl.maximum(top_M, sinks_M)
            kept_M = tl.exp2(top_M - new_top_M)
            sum_M = sum_M * kept_M + tl.exp2(sinks_M - new_top_M)
            acc_MV *= kept_M[:, None]
        dims = tl.arange(0, BLOCK_V)
        is_stored = is_used_M[:, None] & (dims < V)[None, :]
        lines_M = tokens_M.to(tl.int64) * N + heads_M
        result_MV = (acc_MV / tl.where(is_used_M, sum_M, 1.0)[:, None]).to(out.dtype.element_ty)
        tl.store(out + lines_M[:, None] * V + dims[None, :], result_MV, mask=is_stored)


def attend_chunks(
    out_TNV: torch.Tensor,
    parts: tuple[torch.Tensor, torch.Tensor],
    q_TNH: torch.Tensor,
    kv: KVView,
    chunks: Chunks,
    launch: Launch,
    geometry: Geometry,
    scores: Scores,
) -> None:
    """Attend the chunks of one launch.

    Args:
        out_TNV: (T, N, V) of the whole step, written where a row is not cut into parts.
        parts: out (slots, N, V) and lse (slots, N) float32, written where it is.
        q_TNH: of the whole step; the dims of a head contiguous.
    """
    tiling = geometry.chunk_tiling(kv)
    groups, constants = geometry.constants(kv)
    attention_chunks[(launch.num_items, groups)](
        out_TNV,
        *parts,
        q_TNH,
        kv.k,
        kv.v,
        out_TNV if scores.sinks_N is None else scores.sinks_N,
        chunks.tables,
        launch.fields,
        len(launch.fields),
        chunks.tables.stride(0),
        chunks.window,
        *q_TNH.stride()[:2],
        *kv.k.stride()[:3],
        *kv.v.stride()[:3],
        scores.scale,
        scores.softcap,
        **constants,
        BLOCK_C=max(16, triton.next_power_of_2(len(launch.fields))),
        M=tiling.queries,
        T=tiling.keys,
        WINDOW=chunks.window > 0,
        SINKS=scores.sinks_N is not None,
        SOFTCAP=bool(scores.softcap),
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
