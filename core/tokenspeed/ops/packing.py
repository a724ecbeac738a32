"""Low-bit weight layouts: what the bytes of a packed `LinearWeight` mean.

Every layout is a row of blocks, and every block is affine in small groups of neighbouring inputs:
w = scale * q + offset with an integer q. Legend: O outputs, I inputs, B bytes and G groups a row.
Source: GGUF / ggml block formats, ggml-common.h and ggml-quants.c of ggml-org/ggml.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.contracts.weights import LinearWeight

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import torch


@dataclass(frozen=True, slots=True)
class Layout:
    """One packed layout.

    Args:
        block_inputs, block_bytes: inputs that a block covers, and its size.
        group_inputs: inputs that share a scale and an offset.
        unpack: (number of blocks, block_bytes) uint8 -> (q (blocks, block_inputs) int16,
            scale and offset (blocks, groups) float32).
    """

    block_inputs: int
    block_bytes: int
    group_inputs: int
    unpack: Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class GroupedInts:
    """A weight as integers with a scale and an offset per group of `group_inputs` inputs.

    Args:
        q_OI: (O, I) int16.
        scale_OG, offset_OG: (O, I / group_inputs) float32.
    """

    q_OI: torch.Tensor
    scale_OG: torch.Tensor
    offset_OG: torch.Tensor
    group_inputs: int

    def dense(self, dtype: torch.dtype) -> torch.Tensor:
        """Return scale * q + offset as (O, I)."""
        grouped = self.q_OI.to(dtype).view(*self.scale_OG.shape, self.group_inputs)
        dense = grouped * self.scale_OG.to(dtype)[..., None] + self.offset_OG.to(dtype)[..., None]
        return dense.flatten(1)


def unpack(packing: str, data_OB: torch.Tensor) -> GroupedInts:
    """Split raw rows, (O, B) uint8, into integers, scales and offsets; nothing is rounded."""
    layout = LAYOUTS[packing]
    rows = data_OB.shape[0]
    q, scale, offset = layout.unpack(data_OB.reshape(-1, layout.block_bytes))
    inputs = data_OB.shape[1] // layout.block_bytes * layout.block_inputs
    groups = inputs // layout.group_inputs
    parts = (q.reshape(rows, inputs), scale.reshape(rows, groups), offset.reshape(rows, groups))
    return GroupedInts(*parts, layout.group_inputs)


def decode(weight: LinearWeight) -> torch.Tensor:
    """Expand a packed weight to (O, I) float64."""
    import torch

    return unpack(weight.packing, weight.packed["data"]).dense(torch.float64)


def random_weight(name: str, shape: tuple[int, int], random: torch.Generator) -> LinearWeight:
    """Make a packed weight of random bytes with moderate scales, for cases and tests."""
    import torch

    layout = LAYOUTS[name]
    blocks = shape[0] * shape[1] // layout.block_inputs
    data = torch.randint(0, 256, (blocks, layout.block_bytes), generator=random).to(torch.uint8)
    for start in _HALF_FIELDS[name]:
        half = (torch.rand(blocks, 1, generator=random) * 0.01).half()
        data[:, start : start + 2] = half.contiguous().view(-1).view(torch.uint8).view(-1, 2)
    row_bytes = shape[1] // layout.block_inputs * layout.block_bytes
    return LinearWeight(shape, None, name, {"data": data.reshape(shape[0], row_bytes)})


def _half(blocks: torch.Tensor, start: int) -> torch.Tensor:
    import torch

    return blocks[:, start : start + 2].contiguous().view(torch.float16).float()


def _nibbles(bytes_NB: torch.Tensor) -> torch.Tensor:
    """Low nibbles of all bytes, then the high ones, as int16."""
    import torch

    return torch.cat([bytes_NB & 15, bytes_NB >> 4], dim=-1).to(torch.int16)


def _unpack_q4_0(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    scale = _half(blocks, 0)
    return _nibbles(blocks[:, 2:]), scale, -8 * scale


def _unpack_q4_1(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return _nibbles(blocks[:, 4:]), _half(blocks, 0), _half(blocks, 2)


def _unpack_q8_0(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    import torch

    scale = _half(blocks, 0)
    q = blocks[:, 2:].contiguous().view(torch.int8).to(torch.int16)
    return q, scale, torch.zeros_like(scale)


def _unpack_q4_k(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    import torch

    packed = blocks[:, 4:16]
    first, second, third = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat([first & 63, (third & 15) | (first >> 6 << 4)], dim=1).float()
    minima = torch.cat([second & 63, (third >> 4) | (second >> 6 << 4)], dim=1).float()
    q = _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).flatten(1)
    return q, _half(blocks, 0) * scales, -_half(blocks, 2) * minima


def _unpack_q6_k(blocks: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    import torch

    low = blocks[:, :128].reshape(-1, 2, 64)
    high = blocks[:, 128:192].reshape(-1, 2, 32)
    upper = torch.cat([high >> shift & 3 for shift in (0, 2, 4, 6)], dim=-1).to(torch.int16)
    q = (_nibbles(low) | upper << 4).flatten(1) - 32
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float()
    scale = _half(blocks, 208) * scales
    return q, scale, torch.zeros_like(scale)


LAYOUTS: Mapping[str, Layout] = {
    "q4_0": Layout(32, 18, 32, _unpack_q4_0),
    "q4_1": Layout(32, 20, 32, _unpack_q4_1),
    "q8_0": Layout(32, 34, 32, _unpack_q8_0),
    "q4_k": Layout(256, 144, 32, _unpack_q4_k),
    "q6_k": Layout(256, 210, 16, _unpack_q6_k),
}
"""Packing name (trait `packing`) -> layout of `packed["data"]`, (O, bytes a row) uint8."""

_HALF_FIELDS = {"q4_0": (0,), "q4_1": (0, 2), "q8_0": (0,), "q4_k": (0, 2), "q6_k": (208,)}
