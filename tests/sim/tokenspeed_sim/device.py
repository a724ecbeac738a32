"""The device: host memory of a fixed size under a device kind of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed_reference.device import CpuRuntime
from tokenspeed_sdk import CapacityError
from tokenspeed_sim.probe import find_devices

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tokenspeed_sdk import DeviceGraph

MIB = 1 << 20


class Runtime(CpuRuntime):
    """DeviceRuntime; the methods that are not here are the host's.

    Args:
        memory_mib: that the device has; weights do not count, arenas do.
    """

    def __init__(self, *, memory_mib: int) -> None:
        super().__init__()
        self.facts = find_devices()[0]
        self._free_bytes = memory_mib * MIB

    def free_memory_bytes(self) -> int:
        """Return what no arena has taken."""
        return self._free_bytes

    def allocate_arena(self, num_bytes: int) -> torch.Tensor:
        """Take memory of the host.

        Raises:
            CapacityError: more than is free.
        """
        if num_bytes > self._free_bytes:
            raise CapacityError(
                f"KV arena: {num_bytes / MIB:.0f} MiB wanted, {self._free_bytes / MIB:.0f} MiB of "
                "the simulated device are free; give a smaller --kv-gib"
            )
        arena = super().allocate_arena(num_bytes)
        self._free_bytes -= num_bytes
        return arena


class GraphRuntime(Runtime):
    """The same, and it records work."""

    features = Runtime.features | {"graphs"}

    def capture(self, work: Callable[[], None]) -> DeviceGraph:
        """Record what `work` computes.

        Raises:
            EngineError: it waits for a result.
        """
        from tokenspeed_sim.recording import record

        return record(work)


def make_runtime(*, memory_mib: int, graphs: bool) -> Runtime:
    """Return the device; with `graphs` it records work."""
    return GraphRuntime(memory_mib=memory_mib) if graphs else Runtime(memory_mib=memory_mib)
