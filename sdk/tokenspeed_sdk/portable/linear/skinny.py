# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Kernels of linear.dense and linear.heads for few rows: reading the weight is what lasts.

A program has a few outputs and all their inputs: every weight is read once, and no sum is cut.
One row is multiplied without the units for matrices.
Legend: T rows, N heads, O outputs, I inputs; M, K: rows and terms of a tile.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch.nn.functional import linear as torch_linear

from tokenspeed_sdk.portable.dot import dot
from tokenspeed_sdk.portable.launch import ordered, shared_bytes_of
from tokenspeed_sdk.portable.linear.tiles import (
    DENSE_VECTOR_TILES,
    FEW_HEAD_ROWS,
    FEW_ROWS,
    skinny_tiles,
)


@triton.jit
def linear_vector_kernel(
    x_ptr,
    w_ptr,
    bias_ptr,
    out_ptr,
    outputs,
    inputs,
    HAS_BIAS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    STAGES: tl.constexpr,
    ORDER: tl.constexpr,
):
    """Write BLOCK_O outputs of one row; terms are summed across threads once, at the end."""
    output = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    near = tl.minimum(output, outputs - 1).to(tl.int64)
    w_O1 = w_ptr + near[:, None] * inputs
    if ORDER is not None:
        ORDER()
    k = tl.arange(0, BLOCK_K)
    sum_OK = tl.zeros([BLOCK_O, BLOCK_K], tl.float32)
    for start in tl.range(0, inputs, BLOCK_K, num_stages=STAGES):
        if EVEN_K:
            w_OK = tl.load(w_O1 + (start + k)[None, :]).to(tl.float32)
            x_K = tl.load(x_ptr + start + k).to(tl.float32)
        else:
            inside_K = start + k < inputs
            w_OK = tl.load(w_O1 + (start + k)[None, :], mask=inside_K[None, :], other=0.0)
            w_OK = w_OK.to(tl.float32)
            x_K = tl.load(x_ptr + start + k, mask=inside_K, other=0.0).to(tl.float32)
        sum_OK += w_OK * x_K[None, :]
    sum_O = tl.sum(sum_OK, 1)
    if HAS_BIAS:
        sum_O += tl.load(bias_ptr + near).to(tl.float32)
    tl.store(out_ptr + output, sum_O.to(out_ptr.dtype.element_ty), mask=output < outputs)


@triton.jit
def linear_skinny_kernel(
    x_ptr,
    w_ptr,
    bias_ptr,
    out_ptr,
    rows,
    outputs,
    inputs,
    row_stride,
    head_stride,
    num_heads,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
    EVEN_K: tl.constexpr,
    ORDER: tl.constexpr,
):
    """Write BLOCK_M rows of BLOCK_O outputs of one head."""
    head = tl.program_id(1).to(tl.int64)
    output = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    row = tl.program_id(2) * BLOCK_M + tl.arange(0, BLOCK_M)
    inside_M = row < rows
    k = tl.arange(0, BLOCK_K)
    x_MK = x_ptr + head * head_stride + row.to(tl.int64)[:, None] * row_stride + k[None, :]
    # Past the last output it is computed again and not written: no load of a weight has a mask.
    near = tl.minimum(output, outputs - 1).to(tl.int64)
    w_KO = w_ptr + (head * outputs + near)[None, :] * inputs + k[:, None]
    if ORDER is not None:
        ORDER()
    sum_MO = tl.zeros([BLOCK_M, BLOCK_O], tl.float32)
    for start in range(0, inputs, BLOCK_K):
        if EVEN_K:
            x = tl.load(x_MK + start, mask=inside_M[:, None], other=0.0)
            w = tl.load(w_KO + start)
        else:
            inside_K = start + k < inputs
            x = tl.load(x_MK + start, mask=inside_M[:, None] & inside_K[None, :], other=0.0)
            w = tl.load(w_KO + start, mask=inside_K[:, None], other=0.0)
        sum_MO = dot(x, w, sum_MO)
    if HAS_BIAS:
        sum_MO += tl.load(bias_ptr + near).to(tl.float32)[None, :]
    at = out_ptr + (row.to(tl.int64)[:, None] * num_heads + head) * outputs + output[None, :]
    inside = inside_M[:, None] & (output < outputs)[None, :]
    tl.store(at, sum_MO.to(out_ptr.dtype.element_ty), mask=inside)


def linear(
    x_TI: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute linear.dense: few rows here, many as torch does."""
    rows = x_TI.shape[0]
    if rows > FEW_ROWS:
        return torch_linear(x_TI, weight_OI, bias_O)
    out_TO = x_TI.new_empty(rows, weight_OI.shape[0])
    if rows == 1 and weight_OI.numel():
        _multiply_one(x_TI.contiguous(), weight_OI, bias_O, out_TO)
    elif rows:
        if x_TI.stride(1) != 1:
            x_TI = x_TI.contiguous()
        _multiply(x_TI, weight_OI, bias_O, out_TO, 1, x_TI.stride(0), 0)
    return out_TO


def heads_linear(x_TNI: torch.Tensor, weight_NOI: torch.Tensor) -> torch.Tensor:
    """Compute linear.heads: few rows here, many as torch does."""
    rows, heads, _ = x_TNI.shape
    if rows > FEW_HEAD_ROWS:
        return torch.bmm(x_TNI.transpose(0, 1), weight_NOI.mT).transpose(0, 1)
    out_TNO = x_TNI.new_empty(rows, heads, weight_NOI.shape[1])
    if rows:
        if x_TNI.stride(2) != 1:
            x_TNI = x_TNI.contiguous()
        _multiply(x_TNI, weight_NOI, None, out_TNO, heads, x_TNI.stride(0), x_TNI.stride(1))
    return out_TNO


def _multiply_one(
    x_1I: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None, out_1O: torch.Tensor
) -> None:
    outputs, inputs = weight_OI.shape
    tiles = DENSE_VECTOR_TILES
    linear_vector_kernel[(triton.cdiv(outputs, tiles.block_o),)](
        x_1I,
        weight_OI,
        bias_O,
        out_1O,
        outputs,
        inputs,
        HAS_BIAS=bias_O is not None,
        BLOCK_O=tiles.block_o,
        BLOCK_K=tiles.block_k,
        EVEN_K=inputs % tiles.block_k == 0,
        STAGES=tiles.num_stages,
        num_warps=tiles.num_warps,
        **ordered(),
    )


def _multiply(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    out: torch.Tensor,
    heads: int,
    row_stride: int,
    head_stride: int,
) -> None:
    outputs, inputs = weight.shape[-2:]
    rows = x.shape[0]
    tiles = skinny_tiles(
        rows,
        outputs * heads,
        shared_bytes=shared_bytes_of(x.device),
        is_exact=x.dtype == torch.float32,
    )
    grid = (triton.cdiv(outputs, tiles.block_o), heads, triton.cdiv(rows, tiles.block_m))
    linear_skinny_kernel[grid](
        x,
        weight,
        bias,
        out,
        rows,
        outputs,
        inputs,
        row_stride,
        head_stride,
        heads,
        HAS_BIAS=bias is not None,
        BLOCK_M=tiles.block_m,
        BLOCK_O=tiles.block_o,
        BLOCK_K=tiles.block_k,
        EVEN_K=inputs % tiles.block_k == 0,
        num_warps=tiles.num_warps,
        num_stages=tiles.num_stages,
        **ordered(),
    )
