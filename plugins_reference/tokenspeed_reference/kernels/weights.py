"""Kernels of weight formats: bytes to numbers, and back. Legend: O outputs, I inputs, B bytes."""

from __future__ import annotations

import torch

from tokenspeed_sdk import LinearWeight, ops


def decode(weight: LinearWeight, dtype: torch.dtype) -> torch.Tensor:
    """Expand in float32."""
    ints = ops.packing.unpack(weight.packing, weight.packed["data"])
    return ints.dense(torch.float32).to(dtype)


def encode(x_OI: torch.Tensor, packing_name: str) -> torch.Tensor:
    """Compute quantise.encode as it is defined: its arithmetic is float32 already."""
    data: torch.Tensor = ops.quantise.encode.signature(x_OI, packing_name)
    return data
