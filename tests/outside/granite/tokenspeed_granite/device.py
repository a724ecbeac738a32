"""The card: its tensors are torch's CPU tensors, its arena is an anonymous mapping."""

from __future__ import annotations

import mmap
from pathlib import Path

import torch

from tokenspeed_granite.probe import find_devices
from tokenspeed_sdk import CapacityError


class Runtime:
    """DeviceRuntime without optional features; every launch is finished when it returns."""

    features: frozenset[str] = frozenset()

    def __init__(self) -> None:
        self.facts = find_devices()[0]

    def torch_device(self) -> torch.device:
        """Return the host's device, which plays the card's."""
        return torch.device("cpu")

    def free_memory_bytes(self) -> int:
        """Return what the kernel says is available."""
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
        return self.facts.memory_bytes

    def allocate_arena(self, num_bytes: int) -> torch.Tensor:
        """Map zeroed pages: (num_bytes,) uint8; they are backed when first touched.

        Raises:
            CapacityError: more than is free.
        """
        free = self.free_memory_bytes()
        if num_bytes > free:
            raise CapacityError(
                f"no arena of {num_bytes:,} bytes fits: {free:,} are free; at most that many are "
                "allowed; lower --kv-gib"
            )
        return torch.frombuffer(mmap.mmap(-1, num_bytes), dtype=torch.uint8)

    def synchronize(self) -> None:
        """Return: nothing is ever under way."""
