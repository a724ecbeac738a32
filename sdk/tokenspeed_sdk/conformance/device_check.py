"""What a device does for the runtime: memory for the cache, tensors that live on it, waiting."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from tokenspeed_sdk import CapacityError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tokenspeed_sdk import DeviceRuntime

ARENA_BYTES = 1 << 20
ALIGNMENT = 4096
TOO_MUCH = 1 << 60


def check_arena(runtime: DeviceRuntime) -> None:
    """The arena is flat bytes, zero, aligned, on the device, and keeps what is written."""
    arena = runtime.allocate_arena(ARENA_BYTES)
    have = (arena.dtype, tuple(arena.shape), arena.is_contiguous())
    assert have == (torch.uint8, (ARENA_BYTES,), True), f"it gives {have}"
    assert arena.data_ptr() % ALIGNMENT == 0, f"it begins at {arena.data_ptr():#x}"
    device = runtime.torch_device()
    assert arena.device.type == device.type, f"it lies on {arena.device}, the device is {device}"
    assert int(arena.count_nonzero()) == 0, "it is not zero"
    arena.view(torch.float32)[5:8] = 2.5
    runtime.synchronize()
    assert arena.view(torch.float32)[4:9].tolist() == [0, 2.5, 2.5, 2.5, 0]
    other = runtime.allocate_arena(ARENA_BYTES)
    assert int(other.count_nonzero()) == 0, "a second arena lies in the first"


def check_too_large_an_arena(runtime: DeviceRuntime) -> None:
    """An arena that cannot fit is refused with CapacityError."""
    with pytest.raises(CapacityError):
        runtime.allocate_arena(TOO_MUCH)


def check_tensors(runtime: DeviceRuntime) -> None:
    """Tensors go to the device and come back as they were."""
    numbers = torch.arange(1000, dtype=torch.float32)
    there = numbers.to(runtime.torch_device())
    doubled = there + there
    runtime.synchronize()
    assert torch.equal(doubled.cpu(), numbers * 2), "numbers come back changed"


def check_figures(runtime: DeviceRuntime) -> None:
    """Free memory is a part of the device's memory."""
    free, total = runtime.free_memory_bytes(), runtime.facts.memory_bytes
    assert 0 < free <= total, f"{free} bytes are free of {total}"


CHECKS: Mapping[str, Callable[[DeviceRuntime], None]] = {
    "arena": check_arena,
    "too-large-an-arena": check_too_large_an_arena,
    "tensors": check_tensors,
    "figures": check_figures,
}
