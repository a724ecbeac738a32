# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Rotary embedding: angles of a step's tokens, and the rotation, in place.

Legend: T tokens, N heads, H head dim, A rotated dims, P positions.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TILE = 1024
"""Pairs of a program: eight a thread, one load of 16 bytes in bf16 of each half."""


def rotary_angles(
    positions_T: torch.Tensor, cos_sin_PA: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute rotary.angles."""
    tokens, turned = positions_T.shape[0], cos_sin_PA.shape[1]
    cos, sin = torch.empty(
        2, tokens, 1, turned, dtype=cos_sin_PA.dtype, device=cos_sin_PA.device
    ).unbind()
    if tokens:
        tokens_tile, pairs_tile = _tile(turned // 2)
        spread_angles[(triton.cdiv(tokens, tokens_tile),)](
            positions_T,
            cos_sin_PA,
            cos,
            sin,
            tokens,
            positions_T.stride(0),
            PAIRS=turned // 2,
            TOKENS=tokens_tile,
            PAIRS_TILE=pairs_tile,
        )
    return cos, sin


def apply_rotary(x_TNH: torch.Tensor, cos_T1A: torch.Tensor, sin_T1A: torch.Tensor) -> torch.Tensor:
    """Compute rotary.apply in place: what is not turned is neither read nor written."""
    tokens, heads, _ = x_TNH.shape
    pairs = cos_T1A.shape[-1] // 2
    if x_TNH.numel():
        heads_tile, pairs_tile = _tile(pairs)
        turn_heads[(tokens, triton.cdiv(heads, heads_tile))](
            x_TNH,
            cos_T1A,
            sin_T1A,
            heads,
            x_TNH.stride(0),
            x_TNH.stride(1),
            cos_T1A.stride(0),
            sin_T1A.stride(0),
            PAIRS=pairs,
            HEADS=heads_tile,
            PAIRS_TILE=pairs_tile,
        )
    return x_TNH


def _tile(pairs: int) -> tuple[int, int]:
    """Return (tokens or heads, pairs) of a program."""
    columns = triton.next_power_of_2(pairs)
    return max(1, TILE // max(columns, 64)), columns


@triton.jit
def spread_angles(
    positions_ptr,
    table_ptr,
    cos_ptr,
    sin_ptr,
    num_tokens,
    position_stride,
    PAIRS: tl.constexpr,
    TOKENS: tl.constexpr,
    PAIRS_TILE: tl.constexpr,
):
    """Look up TOKENS tokens."""
    tokens = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    pairs = tl.arange(0, PAIRS_TILE)[None, :]
    inside = (tokens < num_tokens)[:, None] & (pairs < PAIRS)
    positions = tl.load(positions_ptr + tokens * position_stride, mask=tokens < num_tokens, other=0)
    row = table_ptr + positions.to(tl.int64)[:, None] * (2 * PAIRS)
    cosines = tl.load(row + pairs, mask=inside, other=0.0).to(tl.float32)
    sines = tl.load(row + PAIRS + pairs, mask=inside, other=0.0).to(tl.float32)
    dtype = cos_ptr.dtype.element_ty
    places = tokens[:, None] * (2 * PAIRS) + pairs
    tl.store(cos_ptr + places, cosines.to(dtype), mask=inside)
    tl.store(cos_ptr + places + PAIRS, cosines.to(dtype), mask=inside)
    tl.store(sin_ptr + places, (-sines).to(dtype), mask=inside)
    tl.store(sin_ptr + places + PAIRS, sines.to(dtype), mask=inside)


@triton.jit
def turn_heads(
    x_ptr,
    cos_ptr,
    sin_ptr,
    num_heads,
    token_stride,
    head_stride,
    cos_stride,
    sin_stride,
    PAIRS: tl.constexpr,
    HEADS: tl.constexpr,
    PAIRS_TILE: tl.constexpr,
):
    """Turn HEADS heads of one token; a thread reads both ends of its pairs before it writes."""
    token = tl.program_id(0).to(tl.int64)
    heads = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]
    pairs = tl.arange(0, PAIRS_TILE)[None, :]
    inside = (heads < num_heads) & (pairs < PAIRS)
    cosines = tl.load(cos_ptr + token * cos_stride + pairs, mask=pairs < PAIRS, other=0.0).to(
        tl.float32
    )
    sines = tl.load(sin_ptr + token * sin_stride + PAIRS + pairs, mask=pairs < PAIRS, other=0.0).to(
        tl.float32
    )
    places = x_ptr + token * token_stride + heads.to(tl.int64) * head_stride + pairs
    first = tl.load(places, mask=inside, other=0.0).to(tl.float32)
    second = tl.load(places + PAIRS, mask=inside, other=0.0).to(tl.float32)
    dtype = x_ptr.dtype.element_ty
    tl.store(places, (first * cosines - second * sines).to(dtype), mask=inside)
    tl.store(places + PAIRS, (second * cosines + first * sines).to(dtype), mask=inside)
