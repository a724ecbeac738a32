# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Stores the keys and values of a step in the paged cache, one launch for both.

Legend: T query tokens, K kv heads, H head dim, V value dim, R rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from tokenspeed_sdk.portable.attention.geometry import padded

if TYPE_CHECKING:
    import torch

    from tokenspeed_sdk import KVView
    from tokenspeed_sdk.portable.attention.steps import Places

ELEMENTS_AT_ONCE = 4096
"""Of keys, or of values, in one program."""


@triton.jit
def place_of(positions_T, tables, lines_R, starts, token, num_rows, table_line,
             BLOCK_TOKENS: tl.constexpr, BLOCK_R: tl.constexpr,
             HAS_STARTS: tl.constexpr):  # fmt: skip
    """Return (block, offset in it) of a query token; the block in 64 bits."""
    row = token
    if HAS_STARTS:
        rows = tl.arange(0, BLOCK_R)
        starts_R = tl.load(starts + rows, mask=rows < num_rows, other=0x7FFFFFFF)
        # Rows without query tokens start where the next one does, which is the last of these.
        row = tl.sum((starts_R <= token).to(tl.int32), axis=0) - 1
    position = tl.load(positions_T + token).to(tl.int32)
    line = tl.load(lines_R + row).to(tl.int64) * table_line
    block = tl.load(tables + line + position // BLOCK_TOKENS).to(tl.int64)
    return block, position % BLOCK_TOKENS


@triton.jit(do_not_specialize=["num_rows", "table_line"])
def attention_write(
    k_cache,
    v_cache,
    k,
    v,
    positions_T,
    tables,
    lines_R,
    starts,
    num_rows,
    table_line,
    k_block,
    k_head,
    k_offset,
    v_block,
    v_head,
    v_offset,
    k_token,
    k_own_head,
    v_token,
    v_own_head,
    K: tl.constexpr,
    H: tl.constexpr,
    V: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_V: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    HAS_STARTS: tl.constexpr,
):
    """Store some heads of one token."""
    token = tl.program_id(0)
    block, offset = place_of(
        positions_T, tables, lines_R, starts, token, num_rows, table_line,
        BLOCK_TOKENS, BLOCK_R, HAS_STARTS,
    )  # fmt: skip
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    dims = tl.arange(0, BLOCK_H)
    is_used = (heads < K)[:, None] & (dims < H)[None, :]
    places = heads[:, None] * k_own_head + dims[None, :]
    values = tl.load(k + token.to(tl.int64) * k_token + places, mask=is_used)
    places = heads[:, None] * k_head + offset * k_offset + dims[None, :]
    tl.store(k_cache + block * k_block + places, values, mask=is_used)
    dims = tl.arange(0, BLOCK_V)
    is_used = (heads < K)[:, None] & (dims < V)[None, :]
    places = heads[:, None] * v_own_head + dims[None, :]
    values = tl.load(v + token.to(tl.int64) * v_token + places, mask=is_used)
    places = heads[:, None] * v_head + offset * v_offset + dims[None, :]
    tl.store(v_cache + block * v_block + places, values, mask=is_used)


def write(k_TKH: torch.Tensor, v_TKH: torch.Tensor, kv: KVView, places: Places) -> None:
    """Store each token's keys and values at its position.

    Args:
        k_TKH, v_TKH: (T, K, H) and (T, K, V) of the cache's dtype; the dims of a head contiguous.
        kv: written in place; offsets are 64-bit.
    """
    num_tokens, num_heads, head_dim = k_TKH.shape
    if not num_tokens:
        return
    value_dim = v_TKH.shape[2]
    block_h, block_v = padded(head_dim), padded(value_dim)
    heads = min(
        triton.next_power_of_2(num_heads), max(1, ELEMENTS_AT_ONCE // max(block_h, block_v))
    )
    num_rows = len(places.lines_R)
    attention_write[(num_tokens, triton.cdiv(num_heads, heads))](
        kv.k,
        kv.v,
        k_TKH,
        v_TKH,
        places.positions_T,
        places.tables,
        places.lines_R,
        places.lines_R if places.starts is None else places.starts,
        num_rows,
        places.tables.stride(0),
        *kv.k.stride()[:3],
        *kv.v.stride()[:3],
        *k_TKH.stride()[:2],
        *v_TKH.stride()[:2],
        K=num_heads,
        H=head_dim,
        V=value_dim,
        BLOCK_H=block_h,
        BLOCK_V=block_v,
        HEADS=heads,
        BLOCK_TOKENS=kv.k.shape[2],
        BLOCK_R=max(16, triton.next_power_of_2(num_rows)),
        HAS_STARTS=places.starts is not None,
        num_warps=4,
    )
