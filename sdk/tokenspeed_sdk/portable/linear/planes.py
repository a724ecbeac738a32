# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Encoded weights laid out for products: numbers, scales and offsets in planes of their own.

Blocks as they are stored are no multiple of 16 bytes; planes are read in whole vectors. Inputs are
padded to chunks of 64 with numbers whose scale is 0.

    4 bits  a chunk is 32 bytes: byte j has input j below and input 32 + j above
    6 bits  that, and a plane of 16 bytes a chunk: byte m has the upper bits of inputs m and 32 + m
            in bits 0-1 and 2-3, and those of 16 + m and 48 + m in bits 4-5 and 6-7
    8 bits  a byte an input

Legend: O outputs, I inputs, P padded inputs, G groups of inputs that share a scale; in a tile
U groups of S inputs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

from tokenspeed_sdk import LinearWeight, ops

if TYPE_CHECKING:
    from tokenspeed.ops.packing import GroupedInts

CHUNK = 64
ROWS = 4096
"""Outputs that are laid out at once: bounds the scratch of doing so."""
EXPAND_OUTPUTS, EXPAND_INPUTS = 8, 256
"""Of a program that expands."""

BITS = {"q4_0": 4, "q4_1": 4, "q4_k": 4, "q6_k": 6, "q8_0": 8}
ZERO = {"q4_0": 8, "q6_k": 32}
"""Packing -> number that means 0, where there are no offsets."""


@dataclass(frozen=True, slots=True)
class Planes:
    """One weight.

    Args:
        shape: (O, I).
        bits: of a number.
        zero: number that means 0.
        group: inputs that share a scale.
        q: (O, P bits / 8) uint8, at 6 bits the lower four of each; at 8 bits int8.
        upper: (O, P / 4) uint8 at 6 bits, or None.
        scales, offsets: (O, P / group) float16; offsets None where all are 0.
    """

    shape: tuple[int, int]
    bits: int
    zero: int
    group: int
    q: torch.Tensor
    upper: torch.Tensor | None
    scales: torch.Tensor
    offsets: torch.Tensor | None

    @property
    def strides(self) -> tuple[int, int, int]:
        """Chunks of a row, and bytes of a row of `q` and `upper`."""
        upper = 0 if self.upper is None else self.upper.shape[1]
        return self.scales.shape[1] * self.group // CHUNK, self.q.shape[1], upper


def lay_out(weight: LinearWeight) -> Planes:
    """Lay a packed weight out, on its device."""
    packing, data_OB = weight.packing, weight.packed["data"]
    parts = [_lay_out(packing, ops.packing.unpack(packing, rows)) for rows in data_OB.split(ROWS)]
    if not parts:
        parts = [_lay_out(packing, ops.packing.unpack(packing, data_OB))]
    q, upper, scales, offsets = (
        None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True)
    )
    outputs, inputs = weight.shape
    group = ops.packing.LAYOUTS[packing].group_inputs
    zero = ZERO.get(packing, 0)
    assert q is not None
    assert scales is not None
    return Planes((outputs, inputs), BITS[packing], zero, group, q, upper, scales, offsets)


def _lay_out(packing: str, ints: GroupedInts) -> tuple[torch.Tensor | None, ...]:
    """Return q, upper, scales and offsets of some rows."""
    bits, zero = BITS[packing], ZERO.get(packing, 0)
    short = -ints.q_OI.shape[1] % CHUNK
    pad = torch.nn.functional.pad
    scales = pad(ints.scale_OG.half(), (0, short // ints.group_inputs))
    has_offsets = bits == 4 and not zero
    offsets = pad(ints.offset_OG.half(), (0, short // ints.group_inputs)) if has_offsets else None
    if bits == 8:
        return pad(ints.q_OI.to(torch.int8), (0, short)), None, scales, None
    # q4_0 is unpacked as q of 0 to 15, q6_k as -32 to 31: stored from 0 on.
    stored = ints.q_OI + 32 if bits == 6 else ints.q_OI
    halves = pad(stored.to(torch.uint8), (0, short)).unflatten(1, (-1, 2, 32))
    q = halves[:, :, 0] & 15 | (halves[:, :, 1] & 15) << 4
    upper = None
    if bits == 6:
        both = halves[:, :, 0] >> 4 | halves[:, :, 1] >> 4 << 2  # (O, chunks, 32)
        upper = (both[..., :16] | both[..., 16:] << 4).flatten(1)
    return q.flatten(1), upper, scales, offsets


@triton.jit
def _scaled(q_OUS, scales_ptr, offsets_ptr, at_OU, inside_OU, HAS_OFFSETS: tl.constexpr):
    """Return scale q + offset in float32."""
    scales_OU = tl.load(scales_ptr + at_OU, mask=inside_OU, other=0.0).to(tl.float32)
    w_OUS = q_OUS.to(tl.float32) * scales_OU[:, :, None]
    if HAS_OFFSETS:
        offsets_OU = tl.load(offsets_ptr + at_OU, mask=inside_OU, other=0.0).to(tl.float32)
        w_OUS += offsets_OU[:, :, None]
    return w_OUS


@triton.jit
def load_bytes(
    q_ptr,
    scales_ptr,
    row_O,
    chunk,
    num_chunks,
    q_stride,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Return BLOCK_K inputs of 8 bits each, from a chunk on, as (O, K) float32."""
    UNITS: tl.constexpr = BLOCK_K // GROUP
    EACH: tl.constexpr = 64 // GROUP  # groups of a chunk
    unit = tl.arange(0, UNITS)[None, :]
    inside_OU = (chunk + unit // EACH < num_chunks) & (row_O[:, None] >= 0)
    at_OU = row_O[:, None] * (num_chunks * EACH) + chunk * EACH + unit
    at_OUS = (row_O[:, None] * q_stride + chunk * 64 + unit * GROUP)[:, :, None]
    at_OUS += tl.arange(0, GROUP)[None, None, :]
    q_OUS = tl.load(q_ptr + at_OUS, mask=inside_OU[:, :, None], other=0)
    w_OUS = _scaled(q_OUS, scales_ptr, scales_ptr, at_OU, inside_OU, False)
    return tl.reshape(w_OUS, [BLOCK_O, BLOCK_K])


@triton.jit
def load_nibbles(
    q_ptr,
    upper_ptr,
    scales_ptr,
    offsets_ptr,
    row_O,
    chunk,
    num_chunks,
    q_stride,
    upper_stride,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
):
    """Return the lower and the upper halves of chunks, from one on, each (O, K / 2) float32."""
    EACH: tl.constexpr = 32 // GROUP  # groups of a half chunk
    UNITS: tl.constexpr = BLOCK_K // 2 // GROUP
    unit = tl.arange(0, UNITS)[None, :]
    inside_OU = (chunk + unit // EACH < num_chunks) & (row_O[:, None] >= 0)
    at_OU = row_O[:, None] * (num_chunks * (2 * EACH)) + chunk * (2 * EACH)
    at_OU += unit // EACH * (2 * EACH) + unit % EACH
    member = tl.arange(0, GROUP)[None, None, :]
    at_OUS = (row_O[:, None] * q_stride + chunk * 32 + unit * GROUP)[:, :, None] + member
    byte_OUS = tl.load(q_ptr + at_OUS, mask=inside_OU[:, :, None], other=0).to(tl.int32)
    low_OUS, high_OUS = byte_OUS & 15, byte_OUS >> 4
    if BITS == 6:
        tl.static_assert(GROUP == 16)
        at_OUS = (row_O[:, None] * upper_stride + chunk * 16 + unit // 2 * 16)[:, :, None] + member
        upper_OUS = tl.load(upper_ptr + at_OUS, mask=inside_OU[:, :, None], other=0).to(tl.int32)
        upper_OUS = upper_OUS >> (unit % 2 * 4)[:, :, None]
        low_OUS = low_OUS | (upper_OUS & 3) << 4
        high_OUS = high_OUS | (upper_OUS & 12) << 2
    low_OUS = _scaled(low_OUS - ZERO, scales_ptr, offsets_ptr, at_OU, inside_OU, HAS_OFFSETS)
    high_OUS = _scaled(
        high_OUS - ZERO, scales_ptr, offsets_ptr, at_OU + EACH, inside_OU, HAS_OFFSETS
    )
    low_OK = tl.reshape(low_OUS, [BLOCK_O, BLOCK_K // 2])
    return low_OK, tl.reshape(high_OUS, [BLOCK_O, BLOCK_K // 2])


@triton.jit
def expand_planes_kernel(
    q_ptr,
    upper_ptr,
    scales_ptr,
    offsets_ptr,
    out_ptr,
    first_row,
    rows,
    inputs,
    num_chunks,
    q_stride,
    upper_stride,
    GROUP: tl.constexpr,
    BITS: tl.constexpr,
    ZERO: tl.constexpr,
    HAS_OFFSETS: tl.constexpr,
    BLOCK_O: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    """Write BLOCK_O rows of BLOCK_K inputs."""
    out_row_O = (tl.program_id(0) * BLOCK_O + tl.arange(0, BLOCK_O)).to(tl.int64)
    row_O = first_row + tl.minimum(out_row_O, rows - 1)
    chunk = tl.program_id(1) * (BLOCK_K // 64)
    first = chunk * 64
    at_O1 = out_ptr + out_row_O[:, None] * inputs
    inside_O1 = (out_row_O < rows)[:, None]
    if BITS == 8:
        w_OK = load_bytes(
            q_ptr, scales_ptr, row_O, chunk, num_chunks, q_stride, BLOCK_O, BLOCK_K, GROUP
        )
        i = first + tl.arange(0, BLOCK_K)[None, :]
        tl.store(at_O1 + i, w_OK.to(out_ptr.dtype.element_ty), mask=inside_O1 & (i < inputs))
    else:
        low_OK, high_OK = load_nibbles(
            q_ptr,
            upper_ptr,
            scales_ptr,
            offsets_ptr,
            row_O,
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
        k = tl.arange(0, BLOCK_K // 2)[None, :]
        i = first + k // 32 * 64 + k % 32
        tl.store(at_O1 + i, low_OK.to(out_ptr.dtype.element_ty), mask=inside_O1 & (i < inputs))
        i += 32
        tl.store(at_O1 + i, high_OK.to(out_ptr.dtype.element_ty), mask=inside_O1 & (i < inputs))


def expand(planes: Planes, first_row: int, out_OI: torch.Tensor) -> None:
    """Write the rows from `first_row` on, as many as `out_OI` has."""
    rows, inputs = out_OI.shape
    grid = (triton.cdiv(rows, EXPAND_OUTPUTS), triton.cdiv(inputs, EXPAND_INPUTS))
    expand_planes_kernel[grid](
        planes.q,
        planes.upper,
        planes.scales,
        planes.offsets,
        out_OI,
        first_row,
        rows,
        inputs,
        *planes.strides,
        GROUP=planes.group,
        BITS=planes.bits,
        ZERO=planes.zero,
        HAS_OFFSETS=planes.offsets is not None,
        BLOCK_O=EXPAND_OUTPUTS,
        BLOCK_K=EXPAND_INPUTS,
    )
