"""What launches of Triton kernels need to know: the device, and whether they are interpreted."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import triton

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "IS_INTERPRETED",
    "Overlap",
    "cores_of",
    "ordered",
    "overlap_launches",
    "shared_bytes_of",
]

IS_INTERPRETED: bool = triton.knobs.runtime.interpret
"""Kernels run in triton's interpreter. It computes wrongly with bfloat16, which it can but load and
store: there operands of products are made float32 as they are loaded."""
HOST_CORES = 4
"""Of the host, where kernels are interpreted: enough that work is cut."""
HOST_SHARED_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Overlap:
    """How a kernel starts while the one before it still runs, on devices that have that.

    Kernels call `order` before they touch anything that another kernel touches, every program of
    them, also one that has nothing to do; before it they may read weights only.

    Args:
        order: jitted, without arguments: lets the next kernel start, and returns when all work
            before this kernel has ended.
        options: of a launch that may start early.
    """

    order: Any
    options: Mapping[str, Any]


_overlap: Overlap | None = None


def overlap_launches(overlap: Overlap | None) -> None:
    """Let the kernels that can start early; None: each waits for the end of the one before it.

    Thread: called before kernels run, by the plugin of the device.
    """
    global _overlap
    _overlap = overlap


def ordered() -> dict[str, Any]:
    """Return the launch arguments of a kernel with the constant ORDER."""
    if _overlap is None:
        return {"ORDER": None}
    return {"ORDER": _overlap.order, **_overlap.options}


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
    return _shared_bytes(index)


@cache
def _shared_bytes(index: int) -> int:
    """Ask the driver once: products ask at every launch."""
    found: int = triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]
    return found
