# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Kernels that expand encoded weights as they are stored: quantise.decode and embedding.packed.

What the bytes of a block mean is said in `tokenspeed.ops.packing`. Legend: T tokens, V words,
O outputs, I inputs, B bytes a row.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from tokenspeed_sdk import LinearWeight, ops

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 512


@triton.jit
def _nibble(byte, is_high):
    return tl.where(is_high, byte >> 4, byte & 15)


@triton.jit
def _number(
    data_ptr,
    halves_ptr,
    row,
    i,
    inside,
    row_bytes,
    PACKING: tl.constexpr,
    SIZE: tl.constexpr,
    BYTES: tl.constexpr,
):
    """Return inputs i of a row in float32: scale q + offset.

    Args:
        data_ptr, halves_ptr: the same rows as uint8 and as float16; rows and blocks are even.
        row: int64.
        SIZE, BYTES: inputs and bytes of a block.
    """
    block = row * row_bytes + i // SIZE * BYTES
    j = i % SIZE
    data = data_ptr + block
    halves = halves_ptr + block // 2
    if PACKING == "q4_0":
        scale = tl.load(halves, mask=inside, other=0.0).to(tl.float32)
        byte = tl.load(data + 2 + j % 16, mask=inside, other=0).to(tl.int32)
        number = scale * (_nibble(byte, j >= 16) - 8).to(tl.float32)
    elif PACKING == "q4_1":
        scale = tl.load(halves, mask=inside, other=0.0).to(tl.float32)
        offset = tl.load(halves + 1, mask=inside, other=0.0).to(tl.float32)
        byte = tl.load(data + 4 + j % 16, mask=inside, other=0).to(tl.int32)
        number = scale * _nibble(byte, j >= 16).to(tl.float32) + offset
    elif PACKING == "q8_0":
        scale = tl.load(halves, mask=inside, other=0.0).to(tl.float32)
        byte = tl.load(data + 2 + j, mask=inside, other=0).to(tl.int8, bitcast=True)
        number = scale * byte.to(tl.float32)
    elif PACKING == "q4_k":
        group = j // 32
        is_late = group >= 4
        k = group % 4
        first = tl.load(data + 4 + k, mask=inside, other=0).to(tl.int32)
        second = tl.load(data + 8 + k, mask=inside, other=0).to(tl.int32)
        third = tl.load(data + 12 + k, mask=inside, other=0).to(tl.int32)
        scale = tl.where(is_late, (third & 15) | (first >> 6 << 4), first & 63).to(tl.float32)
        least = tl.where(is_late, (third >> 4) | (second >> 6 << 4), second & 63).to(tl.float32)
        scale *= tl.load(halves, mask=inside, other=0.0).to(tl.float32)
        least *= tl.load(halves + 1, mask=inside, other=0.0).to(tl.float32)
        byte = tl.load(data + 16 + j // 64 * 32 + j % 32, mask=inside, other=0).to(tl.int32)
        number = scale * _nibble(byte, group % 2 == 1).to(tl.float32) - least
    else:
        tl.static_assert(PACKING == "q6_k")
        half, k = j // 128, j % 128
        low = tl.load(data + half * 64 + k % 64, mask=inside, other=0).to(tl.int32)
        high = tl.load(data + 128 + half * 32 + k % 32, mask=inside, other=0).to(tl.int32)
        q = _nibble(low, k >= 64) | ((high >> (k // 32 * 2)) & 3) << 4
        small = tl.load(data + 192 + j // 16, mask=inside, other=0).to(tl.int8, bitcast=True)
        scale = tl.load(halves + 104, mask=inside, other=0.0).to(tl.float32)
        number = scale * small.to(tl.float32) * (q - 32).to(tl.float32)
    return number


@triton.jit
def decode_rows_kernel(
    data_ptr,
    halves_ptr,
    ids_ptr,
    out_ptr,
    num_words,
    inputs,
    row_bytes,
    HAS_IDS: tl.constexpr,
    PACKING: tl.constexpr,
    SIZE: tl.constexpr,
    BYTES: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write BLOCK inputs of a row, or of the row that an id names: zeros if there is none."""
    place = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = place
    end = inputs
    if HAS_IDS:
        row = tl.load(ids_ptr + place).to(tl.int64)
        end = tl.where((row >= 0) & (row < num_words), inputs, 0)
    number = _number(data_ptr, halves_ptr, row, i, i < end, row_bytes, PACKING, SIZE, BYTES)
    at = out_ptr + place * inputs + i
    tl.store(at, number.to(out_ptr.dtype.element_ty), mask=i < inputs)


def decode(weight: LinearWeight, dtype: torch.dtype) -> torch.Tensor:
    """Compute quantise.decode."""
    data_OB = weight.packed["data"]
    out_OI = torch.empty(weight.shape, dtype=dtype, device=data_OB.device)
    _decode_rows(weight.packing, data_OB, None, out_OI)
    return out_OI


def packed_embedding(
    weight: LinearWeight, dtype: torch.dtype
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Prepare look-ups of embedding.packed: only the rows asked for are expanded."""
    packing, data_VB, hidden = weight.packing, weight.packed["data"], weight.shape[1]

    def look_up(token_ids_T: torch.Tensor) -> torch.Tensor:
        shape = (len(token_ids_T), hidden)
        out_TD = torch.empty(shape, dtype=dtype, device=data_VB.device)
        _decode_rows(packing, data_VB, token_ids_T.contiguous(), out_TD)
        return out_TD

    return look_up


def _decode_rows(
    packing: str, data: torch.Tensor, ids: torch.Tensor | None, out: torch.Tensor
) -> None:
    rows, inputs = out.shape
    if not out.numel():
        return
    data = data.contiguous()
    layout = ops.packing.LAYOUTS[packing]
    block = min(BLOCK, triton.next_power_of_2(inputs))
    decode_rows_kernel[(rows, triton.cdiv(inputs, block))](
        data,
        data.view(torch.float16),
        ids,
        out,
        data.shape[0],
        inputs,
        data.shape[1],
        HAS_IDS=ids is not None,
        PACKING=packing,
        SIZE=layout.block_inputs,
        BYTES=layout.block_bytes,
        BLOCK=block,
    )
