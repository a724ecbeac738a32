"""How small data crosses between host and device within a step: nobody waits for the device.

On a device whose work is done when calls return there is nothing to order. On one that computes
beside the host each step has staging memory of its own, in a ring: it is written again only after
the event behind all of the step's work has passed. Knows no step plan; used by the executors and
what they own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tokenspeed.contracts.device import DeviceRuntime

    Allocate = Callable[[int], torch.Tensor]

ALIGNMENT = 16
"""Bytes: arrays of one upload begin at multiples of it, as kernels assume of tensors."""
CHUNK_BYTES = 1 << 20
"""Least staging memory that is taken at once: what most steps need fits."""


class StepEvent(Protocol):
    """Passes when the device has done what it was given before."""

    def query(self) -> bool:
        """Say whether it has passed; never waits."""
        ...

    def synchronize(self) -> None:
        """Wait until it has passed."""
        ...


class HostLink(Protocol):
    """What carries data across. Thread: the step loop's only.

    Args:
        device: that it leads to.
        num_steps: steps whose downloads can be read: the newest, and those before it.
    """

    device: torch.device
    num_steps: int

    def begin(self) -> None:
        """Start a step: uploads and downloads belong to it until `end`."""
        ...

    def upload(self, *arrays: NDArray[Any]) -> tuple[torch.Tensor, ...]:
        """Return arrays as tensors on the device; together they cost one copy.

        Args:
            arrays: nobody writes them afterwards.
        """
        ...

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the host tensor that will hold a device tensor's values.

        They are there when the step's event has passed, until the ring comes round to its place.
        """
        ...

    def end(self) -> StepEvent:
        """Return the event behind all work that the device was given up to now."""
        ...


class _Passed:
    """The event of work that is done when it is given."""

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return


PASSED = _Passed()


class InlineLink:
    """A HostLink to a device whose work is done when calls return; the host is one."""

    def __init__(self, device: torch.device, *, num_steps: int = 3) -> None:
        self.device = device
        self.num_steps = num_steps

    def begin(self) -> None:
        """Do nothing."""

    def upload(self, *arrays: NDArray[Any]) -> tuple[torch.Tensor, ...]:
        """Return arrays as tensors; on the host they share memory."""
        return tuple(torch.from_numpy(array).to(self.device) for array in arrays)

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the values; on the host the tensor itself."""
        return tensor.cpu()

    def end(self) -> StepEvent:
        """Return an event that has passed."""
        return PASSED


class StreamLink:
    """A HostLink to a device that computes beside the host, in the current stream.

    Args:
        allocate: returns (num_bytes,) uint8 host memory, pinned where the device has that.
        make_event: returns an event that is recorded in the current stream.
        num_steps: length of the ring. A step of a place waits, when it begins, for the one that had
            the place before: more steps than that are never under way.
    """

    def __init__(
        self,
        device: torch.device,
        *,
        allocate: Allocate,
        make_event: Callable[[], StepEvent],
        num_steps: int = 3,
    ) -> None:
        self.device = device
        self.num_steps = num_steps
        self._make_event = make_event
        self._ring = [_Staging(allocate) for _ in range(num_steps)]
        self._events: list[StepEvent] = [PASSED] * num_steps
        self._place = 0
        self._is_open = False

    def begin(self) -> None:
        """Start a step in the ring's next place."""
        if self._is_open:
            self.end()  # its step raised: the device may still read what was uploaded
        self._place = (self._place + 1) % self.num_steps
        self._events[self._place].synchronize()  # orders host writes after the copies of that step
        self._ring[self._place].clear()
        self._is_open = True

    def upload(self, *arrays: NDArray[Any]) -> tuple[torch.Tensor, ...]:
        """Write arrays side by side and start one copy."""
        assert self._is_open, "uploads belong to a step"
        starts = np.cumsum([0, *(_aligned(array.nbytes) for array in arrays)]).tolist()
        host, host_bytes = self._ring[self._place].take(starts[-1])
        for array, start in zip(arrays, starts, strict=False):
            flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            host_bytes[start : start + array.nbytes] = flat
        device = torch.empty(starts[-1], dtype=torch.uint8, device=self.device)
        device.copy_(host, non_blocking=True)
        return tuple(
            device[start : start + array.nbytes].view(_dtype_of(array)).view(array.shape)
            for array, start in zip(arrays, starts, strict=False)
        )

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        """Start a copy."""
        assert self._is_open, "downloads belong to a step"
        memory, _ = self._ring[self._place].take(tensor.nbytes)
        host = memory[: tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        host.copy_(tensor, non_blocking=True)
        return host

    def end(self) -> StepEvent:
        """Record the step's event."""
        event = self._make_event()
        self._events[self._place] = event
        self._is_open = False
        return event


class _Staging:
    """Host memory of one step, handed out from its start."""

    def __init__(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._chunks: list[tuple[torch.Tensor, NDArray[np.uint8]]] = []
        self.clear()

    def clear(self) -> None:
        """Take everything back; what grew stays."""
        self._chunk, self._used = 0, 0

    def take(self, num_bytes: int) -> tuple[torch.Tensor, NDArray[np.uint8]]:
        """Return memory that nobody else has, as a tensor and as the same array."""
        num_bytes = _aligned(num_bytes)
        while self._chunk < len(self._chunks):
            memory, array = self._chunks[self._chunk]
            place = slice(self._used, self._used + num_bytes)
            if place.stop <= len(array):
                self._used = place.stop
                return memory[place], array[place]
            self._chunk, self._used = self._chunk + 1, 0
        size = max(CHUNK_BYTES, 1 << (num_bytes - 1).bit_length())
        memory = self._allocate(size)
        self._chunks.append((memory, memory.numpy()))
        return self.take(num_bytes)


def host_link(runtime: DeviceRuntime, *, depth: int) -> HostLink:
    """Return the link of a device.

    Args:
        depth: steps that are launched before the oldest is collected, beside the newest.
    """
    device, num_steps = runtime.torch_device(), depth + 2
    if "streams" not in runtime.features:
        return InlineLink(device, num_steps=num_steps)

    def recorded() -> StepEvent:
        event = torch.Event(device)
        event.record(torch.accelerator.current_stream(device))
        return event

    return StreamLink(
        device, allocate=_allocator(runtime), make_event=recorded, num_steps=num_steps
    )


def _allocator(runtime: DeviceRuntime) -> Allocate:
    if "pinned" in runtime.features:
        allocate: Allocate = runtime.allocate_pinned  # type: ignore[attr-defined]
        return allocate
    return lambda num_bytes: torch.empty(num_bytes, dtype=torch.uint8)


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


def _dtype_of(array: NDArray[Any]) -> torch.dtype:
    return torch.from_numpy(np.empty(0, array.dtype)).dtype
