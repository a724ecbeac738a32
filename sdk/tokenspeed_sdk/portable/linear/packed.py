# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Kernels of linear.packed: few rows decode the weight in registers, many expand it for the call.

Legend: T rows, O outputs, I inputs; M, K: rows and terms of a tile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch.nn.functional import linear as torch_linear

from tokenspeed_sdk import LinearWeight
from tokenspeed_sdk.portable.dot import dot
from tokenspeed_sdk.portable.linear.planes import Planes, expand, lay_out, load_bytes, load_nibbles
from tokenspeed_sdk.portable.linear.tiles import FEW_PACKED_ROWS, packed_tiles

if TYPE_CHECKING:
    from collections.abc import Callable

EXPANDED_NUMBERS = 32 << 20
"""Most numbers of a weight that are expanded at once: bounds the scratch of many rows."""


@triton.jit
def linear_packed_kernel(
    x_ptr,
    q_ptr,
    upper_ptr,
    scales_ptr,
    offsets_ptr,
    bias_ptr,
    out_ptr,
    rows,
    outputs,
    inputs,
    row_stride,
    num_chunks,
    q_stride,
    upper_stride,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Write BLOCK_M rows of BLOCK_O outputs."""
    output = tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)
    near = tl.minimum(output, outputs - 1).to(tl.int64)
    row = tl.arange(0, BLOCK_M)
    inside_M1 = (row < rows)[:, None]
    x_M1 = x_ptr + row.to(tl.int64)[:, None] * row_stride
    dtype = x_ptr.dtype.element_ty
    sum_MO = tl.zeros([BLOCK_M, BLOCK_O], tl.float32)
    for chunk in range(0, num_chunks, BLOCK_K // 64):
        if BITS == 8:
            i = chunk * 64 + tl.arange(0, BLOCK_K)[None, :]
            x_MK = tl.load(x_M1 + i, mask=inside_M1 & (i < inputs), other=0.0)
            w_OK = load_bytes(
                q_ptr, scales_ptr, near, chunk, num_chunks, q_stride, BLOCK_O, BLOCK_K, GROUP
            )
            sum_MO = dot(x_MK, tl.trans(w_OK.to(dtype)), sum_MO)
        else:
            k = tl.arange(0, BLOCK_K // 2)[None, :]
            i = (chunk + k // 32) * 64 + k % 32
            low_MK = tl.load(x_M1 + i, mask=inside_M1 & (i < inputs), other=0.0)
            high_MK = tl.load(x_M1 + i + 32, mask=inside_M1 & (i + 32 < inputs), other=0.0)
            low_OK, high_OK = load_nibbles(
                q_ptr,
                upper_ptr,
                scales_ptr,
                offsets_ptr,
                near,
                chunk,
                num_chunks,
                q_stride,
                upper_stride,
                BLOCK_O,
                BLOCK_K,
                GROUP,
                BITS,
                ZERO,
                HAS_OFFSETS,
            )
            sum_MO = dot(low_MK, tl.trans(low_OK.to(dtype)), sum_MO)
            sum_MO = dot(high_MK, tl.trans(high_OK.to(dtype)), sum_MO)
    if HAS_BIAS:
        sum_MO += tl.load(bias_ptr + near).to(tl.float32)[None, :]
    at_MO = out_ptr + row.to(tl.int64)[:, None] * outputs + output[None, :]
    tl.store(at_MO, sum_MO.to(dtype), mask=inside_M1 & (output < outputs)[None, :])


def packed_linear(
    weight: LinearWeight, bias_O: torch.Tensor | None
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Lay a weight out for the product; the parts of `weight` are not kept."""
    planes = lay_out(weight)

    def multiply(x_TI: torch.Tensor) -> torch.Tensor:
        if x_TI.shape[0] > FEW_PACKED_ROWS:
            return _expanded(x_TI, planes, bias_O)
        return _decoded(x_TI, planes, bias_O)

    return multiply


def _decoded(x_TI: torch.Tensor, planes: Planes, bias_O: torch.Tensor | None) -> torch.Tensor:
    rows, (outputs, inputs) = x_TI.shape[0], planes.shape
    out_TO = x_TI.new_empty(rows, outputs)
    if not out_TO.numel():
        return out_TO
    if x_TI.stride(1) != 1:
        x_TI = x_TI.contiguous()
    weight = (planes.q, planes.upper, planes.scales, planes.offsets, bias_O)
    sizes = (outputs, inputs, x_TI.stride(0), *planes.strides)
    constants = {
        "GROUP": planes.group,
        "BITS": planes.bits,
        "ZERO": planes.zero,
        "HAS_OFFSETS": planes.offsets is not None,
        "HAS_BIAS": bias_O is not None,
    }
    tiles = packed_tiles(rows)
    constants |= {
        "BLOCK_O": tiles.block_o,
        "BLOCK_K": tiles.block_k,
        "num_warps": tiles.num_warps,
    }
    programs = triton.cdiv(outputs, tiles.block_o)
    linear_packed_kernel[(programs,)](
        x_TI,
        *weight,
        out_TO,
        rows,
        *sizes,
        BLOCK_M=tiles.block_m,
        num_stages=tiles.num_stages,
        **constants,
    )
    return out_TO


def _expanded(x_TI: torch.Tensor, planes: Planes, bias_O: torch.Tensor | None) -> torch.Tensor:
    outputs, inputs = planes.shape
    bias_O = None if bias_O is None else bias_O.to(x_TI.dtype)
    out_TO = x_TI.new_empty(x_TI.shape[0], outputs)
    step = max(1, EXPANDED_NUMBERS // inputs)
    for first in range(0, outputs, step):
        own = slice(first, min(first + step, outputs))
        dense_OI = x_TI.new_empty(own.stop - first, inputs)
        expand(planes, first, dense_OI)
        bias = None if bias_O is None else bias_O[own]
        product_TO = torch_linear(x_TI, dense_OI, bias)
        if step >= outputs:
            return product_TO
        out_TO[:, own] = product_TO
    return out_TO
