# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Joins partial results, in their order: sum over parts of 2^(lse - top) out, over the same sum.

Legend: R rows, C chunks, N heads, E of them at once, V value dim, P parts of a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from tokenspeed_sdk.portable.attention.chunks import CHUNK_FIELDS
from tokenspeed_sdk.portable.attention.geometry import padded
from tokenspeed_sdk.portable.attention.tiles import LOG2_E, cut_evenly, find_item

if TYPE_CHECKING:
    import torch

    from tokenspeed_sdk import KVView
    from tokenspeed_sdk.portable.attention.geometry import Geometry, Scores
    from tokenspeed_sdk.portable.attention.steps import DeviceRows, Launch

FIELDS = tl.constexpr(CHUNK_FIELDS)
PARTS_AT_ONCE = tl.constexpr(8)


@triton.jit
def _merge(out, parts_out, parts_lse, sinks_N, token, first_slot, own, shared, skipped,
           N: tl.constexpr, V: tl.constexpr, BLOCK_V: tl.constexpr, HEADS: tl.constexpr,
           SINKS: tl.constexpr):  # fmt: skip
    """Merge the slots [first, first + own) and, `skipped` after the first one, `shared` more."""
    heads_E = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    is_head_E = heads_E < N
    dims_V = tl.arange(0, BLOCK_V)
    is_value_EV = is_head_E[:, None] & (dims_V < V)[None, :]
    if SINKS:
        top_E = tl.load(sinks_N + heads_E, mask=is_head_E, other=0.0).to(tl.float32) * LOG2_E
        total_E = tl.full([HEADS], 1.0, tl.float32)
    else:
        top_E = tl.full([HEADS], float("-inf"), tl.float32)
        total_E = tl.full([HEADS], 0.0, tl.float32)
    acc_EV = tl.full([HEADS, BLOCK_V], 0.0, tl.float32)
    for start in range(0, own + shared, PARTS_AT_ONCE):
        parts_P = start + tl.arange(0, PARTS_AT_ONCE)
        is_part_P = parts_P < own + shared
        slots_P = first_slot + parts_P + tl.where(parts_P >= own, skipped - own, 0)
        lines_PE = slots_P.to(tl.int64)[:, None] * N + heads_E[None, :]
        is_line_PE = is_part_P[:, None] & is_head_E[None, :]
        lse_PE = tl.load(parts_lse + lines_PE, mask=is_line_PE, other=float("-inf"))
        values_PEV = tl.load(
            parts_out + lines_PE[:, :, None] * V + dims_V[None, None, :],
            mask=is_part_P[:, None, None] & is_value_EV[None, :, :],
            other=0.0,
        )
        new_top_E = tl.maximum(top_E, tl.max(lse_PE, axis=0))
        base_E = tl.where(new_top_E == float("-inf"), 0.0, new_top_E)  # nothing was seen so far
        shares_PE = tl.exp2(lse_PE - base_E[None, :])
        kept_E = tl.exp2(top_E - base_E)
        acc_EV = acc_EV * kept_E[:, None] + tl.sum(values_PEV * shares_PE[:, :, None], axis=0)
        total_E = total_E * kept_E + tl.sum(shares_PE, axis=0)
        top_E = new_top_E
    lines_E = token.to(tl.int64) * N + heads_E
    result_EV = acc_EV / tl.where(is_head_E, total_E, 1.0)[:, None]
    places_EV = lines_E[:, None] * V + dims_V[None, :]
    tl.store(out + places_EV, result_EV.to(out.dtype.element_ty), mask=is_value_EV)


@triton.jit(do_not_specialize=["window", "slots_a_row"])
def attention_merge_rows(
    out,
    parts_out,
    parts_lse,
    sinks_N,
    lengths_R,
    covered_R,
    window,
    slots_a_row,
    N: tl.constexpr,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
    HEADS: tl.constexpr,
    T: tl.constexpr,
    MOST_PARTS: tl.constexpr,
    LEAST_TILES: tl.constexpr,
    SHARED_T: tl.constexpr,
    SHARED_LEAST_TILES: tl.constexpr,
    SHARED: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Merge the parts of one decode row, some heads; their number follows from its length."""
    row = tl.program_id(0)
    stop = tl.load(lengths_R + row)
    first = tl.where(window > 0, tl.maximum(stop - window, 0), 0)
    shared = 0
    if SHARED:
        first = tl.load(covered_R + row)
        _, _, shared = cut_evenly(0, first, MOST_PARTS, SHARED_LEAST_TILES, SHARED_T)
    _, _, own = cut_evenly(first, stop, MOST_PARTS, LEAST_TILES, T)
    _merge(out, parts_out, parts_lse, sinks_N, row, row * slots_a_row, own, shared, MOST_PARTS,
           N, V, BLOCK_V, HEADS, SINKS)  # fmt: skip


@triton.jit(do_not_specialize=["num_chunks"])
def attention_merge_chunks(
    out,
    parts_out,
    parts_lse,
    sinks_N,
    chunks,
    num_chunks,
    N: tl.constexpr,
    V: tl.constexpr,
    BLOCK_V: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_C: tl.constexpr,
    SINKS: tl.constexpr,
):
    """Merge the parts of one query token, some heads, of a chunk that was cut into parts."""
    lines = tl.arange(0, BLOCK_C)
    ends_C = tl.load(chunks + lines * FIELDS + 6, mask=lines < num_chunks, other=0x7FFFFFFF)
    chunk, token = find_item(ends_C, tl.program_id(0))
    fields = chunks + chunk * FIELDS
    parts = tl.load(fields + 4)
    first_slot = tl.load(fields + 5) + token * parts
    _merge(out, parts_out, parts_lse, sinks_N, tl.load(fields) + token, first_slot, parts, 0, 0,
           N, V, BLOCK_V, HEADS, SINKS)  # fmt: skip


def merge_rows(
    out_TNV: torch.Tensor,
    parts: tuple[torch.Tensor, torch.Tensor],
    kv: KVView,
    rows: DeviceRows,
    geometry: Geometry,
    scores: Scores,
) -> None:
    """Merge the parts of decode rows into their first rows of `out_TNV`."""
    tiling, shared_tiling = geometry.row_tiling(kv), geometry.shared_tiling(kv)
    cut = geometry.cut
    heads = geometry.merged_heads
    attention_merge_rows[(rows.num_rows, triton.cdiv(geometry.num_heads, heads))](
        out_TNV,
        *parts,
        out_TNV if scores.sinks_N is None else scores.sinks_N,
        rows.lengths_R,
        rows.shared.tokens_R if rows.shared else rows.lengths_R,
        rows.window,
        rows.slots_a_row(cut),
        N=geometry.num_heads,
        V=geometry.value_dim,
        BLOCK_V=padded(geometry.value_dim),
        HEADS=heads,
        T=tiling.keys,
        MOST_PARTS=cut.row_parts,
        LEAST_TILES=cut.least_tiles(tiling),
        SHARED_T=shared_tiling.keys,
        SHARED_LEAST_TILES=cut.least_tiles(shared_tiling),
        SHARED=rows.shared is not None,
        SINKS=scores.sinks_N is not None,
        num_warps=2,
    )


def merge_chunks(
    out_TNV: torch.Tensor,
    parts: tuple[torch.Tensor, torch.Tensor],
    launch: Launch,
    geometry: Geometry,
    scores: Scores,
) -> None:
    """Merge the parts of the query tokens of a launch that were cut."""
    heads = geometry.merged_heads
    attention_merge_chunks[(launch.num_split_tokens, triton.cdiv(geometry.num_heads, heads))](
        out_TNV,
        *parts,
        out_TNV if scores.sinks_N is None else scores.sinks_N,
        launch.fields,
        len(launch.fields),
        N=geometry.num_heads,
        V=geometry.value_dim,
        BLOCK_V=padded(geometry.value_dim),
        HEADS=heads,
        BLOCK_C=max(16, triton.next_power_of_2(len(launch.fields))),
        SINKS=scores.sinks_N is not None,
        num_warps=2,
    )
