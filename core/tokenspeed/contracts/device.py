"""Device slot: what the runtime needs from an accelerator. A device kind is not a torch device
type: it may map to `cpu`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """What a probe learned, without importing torch.

    Args:
        kind: device kind such as "cpu"; selection compares it with the kinds a plugin names.
        name: human-readable model.
        arch: feature name such as "x86_64"; only the device plugin knows how names compare.
        count: devices of this kind on this machine.
        memory_bytes: of one device.
        traits: further facts by trait name (see `contracts/traits.py`); every request carries them.
        runs: other architectures whose code runs here too, in the device plugin's judgement.
    """

    kind: str
    name: str
    arch: str
    count: int
    memory_bytes: int
    traits: Mapping[str, object] = field(default_factory=dict)
    runs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "runs", tuple(self.runs))  # JSON has lists


class DeviceGraph(Protocol):
    """Recorded device work, launched whole.

    Args:
        num_bytes: of device memory that it keeps beside the tensors it was recorded over.
    """

    num_bytes: int

    def replay(self) -> None:
        """Launch the work again on the current stream; it reads what its tensors hold by then."""
        ...


class DeviceRuntime(Protocol):
    """Required: all methods here. Optional, declared in `features`: streams, graphs, pinned.

    An Offer with the fact `takes_index` is loaded with `index`: which of the devices that the
    process sees; without it a host has one rank.

    A runtime with feature "pinned" also has `allocate_pinned(num_bytes) -> torch.Tensor`:
    (num_bytes,) uint8 host memory that copies from and to the device need no staging for, aligned
    to 4 KiB; CapacityError when it does not fit. Without it the host tier is plain memory.

    A runtime with feature "streams" computes beside the host: work is launched and returns, its
    torch device has streams and events (`torch.Stream`, `torch.Event`).

    A runtime with feature "graphs" also has `capture(work: Callable[[], None]) -> DeviceGraph`: it
    calls `work`, once or twice, and records what that launches. Tensors that `work` makes live as
    long as the graph, in memory that only other graphs of the runtime write too; no two of them
    are replayed at once. EngineError, naming the cause, when the work cannot be recorded (it waits
    for the device, say); nothing of it is kept then, and the device computes as before.
    """

    facts: DeviceFacts
    features: frozenset[str]

    def torch_device(self) -> torch.device:
        """Return the torch device that tensors of this runtime live on."""
        ...

    def free_memory_bytes(self) -> int:
        """Return bytes that can still be allocated, now."""
        ...

    def allocate_arena(self, num_bytes: int) -> torch.Tensor:
        """Allocate the KV arena: (num_bytes,) uint8, zeroed or lazily zero, aligned to 4 KiB.

        Raises:
            CapacityError: it does not fit; the message names both sizes.
        """
        ...

    def synchronize(self) -> None:
        """Wait until all launched work is done."""
        ...
