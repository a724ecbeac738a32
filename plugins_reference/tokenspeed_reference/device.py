"""The CPU as a device: facts from the operating system, lazily committed arenas, threads.

Module level imports no torch: facts are read before anything heavy is loaded.
"""

from __future__ import annotations

import mmap
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed_sdk import CapacityError, DeviceFacts

if TYPE_CHECKING:
    import torch

GIB = 1 << 30


class CpuRuntime:
    """DeviceRuntime of the host's processors."""

    features: frozenset[str] = frozenset()

    def __init__(self) -> None:
        import torch

        self.facts = cpu_facts()
        torch.set_num_threads(min(torch.get_num_threads(), usable_cores()))

    def torch_device(self) -> torch.device:
        """Return the torch device `cpu`."""
        import torch

        return torch.device("cpu")

    def free_memory_bytes(self) -> int:
        """Return what the system and the control group still allow."""
        return min(_meminfo("MemAvailable"), _group_memory_left())

    def allocate_arena(self, num_bytes: int) -> torch.Tensor:
        """Map zero pages: a page costs memory only once it is written.

        Raises:
            CapacityError: more than is free.
        """
        import torch

        free = self.free_memory_bytes()
        if not 0 < num_bytes <= free:
            raise CapacityError(
                f"KV arena: {num_bytes / GIB:.2f} GiB wanted, {free / GIB:.2f} GiB of memory are "
                f"free; give a smaller --kv-gib, or free memory"
            )
        pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(pages, dtype=torch.uint8)

    def synchronize(self) -> None:
        """Do nothing: calls on the CPU have finished when they return."""


def cpu_facts() -> DeviceFacts:
    """Read model, architecture and memory."""
    return DeviceFacts("cpu", _cpu_name(), platform.machine(), 1, _meminfo("MemTotal"))


def usable_cores() -> int:
    """Return how many cores this process may use: affinity, cut by the control group's quota."""
    cores = len(os.sched_getaffinity(0))
    quota, _, period = _read("/sys/fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def _group_memory_left() -> int:
    limit, used = _read("/sys/fs/cgroup/memory.max"), _read("/sys/fs/cgroup/memory.current")
    return int(limit) - int(used) if limit.isdigit() and used.isdigit() else 1 << 62


def _meminfo(field: str) -> int:
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cpu_name() -> str:
    for line in _read("/proc/cpuinfo").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""
