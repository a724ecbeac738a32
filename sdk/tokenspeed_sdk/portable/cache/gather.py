# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Reads rows of the paged cache back, one behind the other.

Legend: R rows, S cached tokens, K kv heads, H head dim, V value dim, M blocks a row.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl

from tokenspeed_sdk import AttentionBatch, KVView

TILE = 2048
"""Elements of a program."""
START, LENGTH, TABLE = (tl.constexpr(place) for place in range(3))
"""Fields of a row's plan: its first place in the result, its tokens, then its block ids."""


def gather_kv(kv: KVView, batch: AttentionBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute kv.gather: one upload and one launch each for keys and values."""
    lengths = batch.context_tokens + np.diff(batch.query_start)
    starts = np.cumsum(lengths) - lengths
    plan = np.concatenate([np.stack([starts, lengths], 1), batch.block_tables], 1, dtype=np.int32)
    plan_RF = torch.from_numpy(plan).to(kv.k.device)
    most, total = int(lengths.max(initial=0)), int(lengths.sum())
    return (
        _gathered(kv.k, plan_RF, most, total, batch.block_tokens),
        _gathered(kv.v, plan_RF, most, total, batch.block_tokens),
    )


def _gathered(
    cache: torch.Tensor, plan_RF: torch.Tensor, most: int, total: int, block_tokens: int
) -> torch.Tensor:
    _, heads, _, width = cache.shape
    result = torch.empty(total, heads, width, dtype=cache.dtype, device=cache.device)
    if result.numel():
        columns = triton.next_power_of_2(width)
        tokens_tile = max(1, TILE // columns)
        gather_tokens[(triton.cdiv(most, tokens_tile), heads, plan_RF.shape[0])](
            cache,
            plan_RF,
            result,
            plan_RF.stride(0),
            block_tokens,
            *cache.stride()[:3],
            result.stride(0),
            WIDTH=width,
            TOKENS=tokens_tile,
            COLUMNS=columns,
        )
    return result


@triton.jit
def gather_tokens(
    cache_ptr,
    plan_ptr,
    result_ptr,
    plan_stride,
    block_tokens,
    block_stride,
    head_stride,
    token_stride,
    result_stride,
    WIDTH: tl.constexpr,
    TOKENS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Copy TOKENS tokens of one row and head."""
    head = tl.program_id(1).to(tl.int64)
    plan = plan_ptr + tl.program_id(2).to(tl.int64) * plan_stride
    start = tl.load(plan + START).to(tl.int64)
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    is_own = tokens < tl.load(plan + LENGTH)
    blocks = tl.load(plan + TABLE + tokens // block_tokens, mask=is_own, other=0).to(tl.int64)
    columns = tl.arange(0, COLUMNS)[None, :]
    inside = is_own[:, None] & (columns < WIDTH)
    source = blocks * block_stride + (tokens % block_tokens).to(tl.int64) * token_stride
    part = tl.load(cache_ptr + head * head_stride + source[:, None] + columns, mask=inside)
    target = (start + tokens)[:, None] * result_stride + head * WIDTH + columns
    tl.store(result_ptr + target, part, mask=inside)
