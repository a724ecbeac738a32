"""What launches of Triton kernels need to know: the device, and whether they are interpreted."""

from __future__ import annotations

import torch
import triton

__all__ = ["IS_INTERPRETED", "cores_of", "shared_bytes_of"]

IS_INTERPRETED: bool = triton.knobs.runtime.interpret
"""Kernels run in triton's interpreter. It computes wrongly with bfloat16, which it can but load and
store: there operands of products are made float32 as they are loaded."""
HOST_CORES = 4
"""Of the host, where kernels are interpreted: enough that work is cut."""
HOST_SHARED_BYTES = 1 << 20


def cores_of(device: torch.device) -> int:
    """Return the cores of a device, each of which runs programs of its own."""
    if device.type == "cpu":
        return HOST_CORES
    found: int = torch.get_device_module(device).get_device_properties(device).multi_processor_count
    return found


def shared_bytes_of(device: torch.device) -> int:
    """Return the shared memory that one program can have on a device."""
    if device.type == "cpu":
        return HOST_SHARED_BYTES
    index = torch.get_device_module(device).current_device()
    index = index if device.index is None else device.index
    found: int = triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]
    return found
