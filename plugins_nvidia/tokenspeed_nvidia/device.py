"""One NVIDIA GPU as a device: memory through torch's allocator, pinned staging, streams, graphs.

Imports no torch before it is built.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed_nvidia.probe import find_devices
from tokenspeed_sdk import CapacityError, PluginError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

    from tokenspeed_nvidia.graphs import CapturedGraph, GraphCapture

GIB = 1 << 30
PAGE_BYTES = 4096
"""Arenas and staging begin at multiples of this."""


class CudaRuntime:
    """DeviceRuntime of one GPU.

    Args:
        index: of those that CUDA_VISIBLE_DEVICES names.
    Raises:
        PluginError: torch was built without CUDA, or does not see the GPU that the driver sees.
        CapacityError: there are not so many.
    """

    features: frozenset[str] = frozenset({"pinned", "streams", "graphs"})

    def __init__(self, index: int = 0) -> None:
        import torch

        if not torch.cuda.is_available():
            built = torch.version.cuda or "none: a CPU build"
            raise PluginError(
                f"torch {torch.__version__} does not reach the GPU (its CUDA: {built}); install a "
                "torch built for the driver's CUDA, or use --plugins reference",
                id="device-failed",
            )
        self.facts = find_devices(index)[0]
        self._device = torch.device("cuda", index)
        self._graphs: GraphCapture | None = None
        torch.cuda.set_device(self._device)
        from tokenspeed_nvidia.overlap import overlap_launches  # imports triton

        # Products of float32 stay float32: TF32 has the mantissa of a float16.
        torch.backends.cuda.matmul.allow_tf32 = False
        overlap_launches(self._device)

    def torch_device(self) -> torch.device:
        """Return the torch device."""
        return self._device

    def free_memory_bytes(self) -> int:
        """Return what the driver has free and what torch's allocator holds unused."""
        import torch

        free, _ = torch.cuda.mem_get_info(self._device)
        reserved = torch.cuda.memory_reserved(self._device)
        return int(free + reserved - torch.cuda.memory_allocated(self._device))

    def allocate_arena(self, num_bytes: int) -> torch.Tensor:
        """Allocate zeroed device memory.

        Raises:
            CapacityError: more than is free.
        """
        import torch

        free = self.free_memory_bytes()
        if not 0 < num_bytes <= free - PAGE_BYTES:
            raise self._too_large("KV arena", num_bytes, free)
        try:
            memory = torch.zeros(num_bytes + PAGE_BYTES, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError:  # free memory may be in pieces
            raise self._too_large("KV arena", num_bytes, free) from None
        return _aligned(memory, num_bytes)

    def allocate_pinned(self, num_bytes: int) -> torch.Tensor:
        """Allocate host memory that the GPU copies from and to without staging.

        Raises:
            CapacityError: the system does not pin so much.
        """
        import torch

        try:
            memory = torch.empty(num_bytes + PAGE_BYTES, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            reason = str(error).partition("\n")[0]
            raise CapacityError(
                f"pinned host memory: {num_bytes / GIB:.2f} GiB wanted, the driver refuses "
                f"({reason}); give a smaller --host-kv-gib, or raise the limit of locked memory"
            ) from None
        return _aligned(memory, num_bytes)

    def capture(self, work: Callable[[], None]) -> CapturedGraph:
        """Record what `work` launches.

        Raises:
            EngineError: it cannot be captured.
        """
        from tokenspeed_nvidia.graphs import GraphCapture

        if self._graphs is None:
            self._graphs = GraphCapture(self._device)
        return self._graphs.capture(work)

    def synchronize(self) -> None:
        """Wait until all launched work is done."""
        import torch

        torch.cuda.synchronize(self._device)

    def _too_large(self, what: str, num_bytes: int, free: int) -> CapacityError:
        return CapacityError(
            f"{what}: {num_bytes / GIB:.2f} GiB wanted, {free / GIB:.2f} GiB of {self.facts.name} "
            "are free; give a smaller --kv-gib, or free memory"
        )


def _aligned(memory: torch.Tensor, num_bytes: int) -> torch.Tensor:
    """Return so many bytes of memory from a page's start on."""
    first = -memory.data_ptr() % PAGE_BYTES
    return memory[first : first + num_bytes]
