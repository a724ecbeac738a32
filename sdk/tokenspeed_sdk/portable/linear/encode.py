# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Kernel of quantise.encode: bytes equal to the definition's, so nothing is fused or approximate.

Legend: O outputs, I inputs, B bytes a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_sdk import ops

BLOCKS = 16
"""Blocks of 32 inputs of a program."""


@triton.jit
def _inverse(scale):
    return tl.where(scale == 0, 0.0, tl.div_rn(1.0, tl.where(scale == 0, 1.0, scale)))


@triton.jit
def _store_nibbles(at_B, q_BI, inside, BLOCKS: tl.constexpr):
    """Write 16 bytes a block: low nibbles from its first half, high ones from its second."""
    halves = tl.permute(tl.reshape(q_BI, [BLOCKS, 2, 16]), [0, 2, 1])
    low, high = tl.split(halves)
    byte = tl.arange(0, 16)[None, :]
    tl.store(at_B[:, None] + byte, (low | high << 4).to(tl.uint8), mask=inside[:, None])


@triton.jit
def encode_blocks_kernel(
    x_ptr, data_ptr, halves_ptr, num_blocks, PACKING: tl.constexpr, BLOCKS: tl.constexpr
):
    """Encode BLOCKS blocks; `data_ptr` and `halves_ptr` are the same bytes."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    inside = block < num_blocks
    i = tl.arange(0, 32)[None, :]
    x = tl.load(x_ptr + block[:, None] * 32 + i, mask=inside[:, None], other=0.0).to(tl.float32)
    if PACKING == "q4_0":
        place = tl.argmax(tl.abs(x), 1)
        # Zero for the others: the sum is the one number, exactly.
        scale = tl.sum(tl.where(i == place[:, None], x, 0.0), 1) / -8
        q = x * _inverse(scale)[:, None] + 8.5
        q = tl.maximum(tl.minimum(q, 15.5), 0.0).to(tl.int32)
        tl.store(halves_ptr + block * 9, scale.to(tl.float16), mask=inside)
        _store_nibbles(data_ptr + block * 18 + 2, q, inside, BLOCKS)
    elif PACKING == "q4_1":
        least = tl.min(x, 1)
        scale = tl.div_rn(tl.max(x, 1) - least, 15.0)
        q = (x - least[:, None]) * _inverse(scale)[:, None] + 0.5
        q = tl.maximum(tl.minimum(q, 15.5), 0.0).to(tl.int32)
        tl.store(halves_ptr + block * 10, scale.to(tl.float16), mask=inside)
        tl.store(halves_ptr + block * 10 + 1, least.to(tl.float16), mask=inside)
        _store_nibbles(data_ptr + block * 20 + 4, q, inside, BLOCKS)
    else:
        tl.static_assert(PACKING == "q8_0")
        scale = tl.div_rn(tl.max(tl.abs(x), 1), 127.0)
        q = x * _inverse(scale)[:, None]
        size = tl.floor(tl.abs(q) + 0.5)
        byte = tl.where(q < 0, -size, size).to(tl.int32).to(tl.uint8)
        tl.store(halves_ptr + block * 17, scale.to(tl.float16), mask=inside)
        tl.store(data_ptr + (block * 34 + 2)[:, None] + i, byte, mask=inside[:, None])


def encode(x_OI: torch.Tensor, packing_name: str) -> torch.Tensor:
    """Compute quantise.encode."""
    layout = ops.packing.LAYOUTS[packing_name]
    rows, inputs = x_OI.shape
    row_bytes = inputs // layout.block_inputs * layout.block_bytes
    data_OB = torch.empty(rows, row_bytes, dtype=torch.uint8, device=x_OI.device)
    num_blocks = rows * inputs // layout.block_inputs
    if num_blocks:
        encode_blocks_kernel[(triton.cdiv(num_blocks, BLOCKS),)](
            x_OI.contiguous(),
            data_OB,
            data_OB.view(torch.float16),
            num_blocks,
            PACKING=packing_name,
            BLOCKS=BLOCKS,
            enable_fp_fusion=False,  # a product and a sum round twice, as in the definition
        )
    return data_OB
