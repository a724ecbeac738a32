"""What launches of Triton kernels need to know: the device's cores, the dtype of products."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["IS_INTERPRETED", "cores_of", "operand", "shared_bytes_of"]

IS_INTERPRETED: bool = triton.knobs.runtime.interpret
"""Kernels run in triton's interpreter, which computes with bfloat16 wrongly."""
INTERPRETED_CORES = 4
INTERPRETED_SHARED_BYTES = 1 << 20
_TRITON_DTYPES: Mapping[torch.dtype, Any] = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


def operand(dtype: torch.dtype) -> Any:
    """Return the dtype that operands of a product of `dtype` are loaded as."""
    return tl.float32 if IS_INTERPRETED else _TRITON_DTYPES[dtype]


def cores_of(device: torch.device) -> int:
    """Return the cores of a device, each of which runs programs of its own."""
    if IS_INTERPRETED:
        return INTERPRETED_CORES
    found: int = torch.get_device_module(device).get_device_properties(device).multi_processor_count
    return found


def shared_bytes_of(device: torch.device) -> int:
    """Return the shared memory that one program can have on a device."""
    if IS_INTERPRETED:
        return INTERPRETED_SHARED_BYTES
    index = torch.get_device_module(device).current_device()
    index = index if device.index is None else device.index
    found: int = triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]
    return found
