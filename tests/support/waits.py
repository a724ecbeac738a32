"""A device that computes beside the host, played by the host: who waits for it is found out.

`forbids_waits` raises where a value of a tensor is read, as a device would have to be waited for
there. `LateLink` brings what is downloaded only when somebody waits for the step's event, and
spoils staging memory once the ring lets go of it: reading too early, or writing too early, shows in
the answers.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tokenspeed.executor.host_link import StreamLink

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

READS = frozenset(
    {"item", "tolist", "numpy", "cpu", "__bool__", "__int__", "__float__", "__index__", "__array__"}
    | {"__contains__"}
)
"""Methods of a tensor that return values on the host."""
SIZED_BY_VALUES = frozenset(
    {"nonzero", "masked_select", "_unique2", "unique_dim", "_local_scalar_dense", "equal"}
    | {"is_nonzero", "bincount"}
)
"""Operators whose results' shapes, or results, the host must know."""
SPOILT = 0x5A


class WaitError(AssertionError):
    """The host read what the device had not computed yet."""


class _NoReads(TorchFunctionMode):
    def __init__(self, host: set[int]) -> None:
        super().__init__()
        self._host = host

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = getattr(func, "__name__", "")
        if name in READS and args[0].untyped_storage().data_ptr() not in self._host:
            raise WaitError(f"{name} waits for the device")
        return func(*args, **(kwargs or {}))


class _NoValues(TorchDispatchMode):
    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if name in SIZED_BY_VALUES:
            raise WaitError(f"{name} waits for the device")
        is_indexed = name in ("index", "index_put", "index_put_", "_index_put_impl_")
        if is_indexed and any(index is not None and index.dtype == torch.bool for index in args[1]):
            raise WaitError(f"{name} with a mask waits for the device")
        return func(*args, **(kwargs or {}))


@contextmanager
def forbids_waits(link: LateLink | None = None) -> Iterator[None]:
    """Raise WaitError where the host reads a tensor's values.

    Args:
        link: its staging memory is the host's, and may be read.
    """
    with _NoReads(link.host if link else set()), _NoValues():
        yield


@contextmanager
def allows_waits() -> Iterator[None]:
    """Let the host read within `forbids_waits`."""
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        yield


class _LateEvent:
    """Passes when it is waited for, and with it all of its link before it."""

    def __init__(self, link: LateLink, arrivals: list[Callable[[], object]]) -> None:
        self._link = link
        self._arrivals = arrivals
        self.has_passed = False

    def query(self) -> bool:
        return self.has_passed

    def synchronize(self) -> None:
        if self.has_passed:
            return
        self._link.num_waits += 1
        with allows_waits():
            for event in self._link.events:
                event.arrive()
                if event is self:
                    break

    def arrive(self) -> None:
        """Bring what was downloaded."""
        with torch.inference_mode():  # what steps make is written in it alone
            for arrive in self._arrivals:
                arrive()
        self._arrivals = []
        self.has_passed = True


class LateLink(StreamLink):
    """A StreamLink over the host; `num_waits` counts the events that had to be waited for.

    `host` has the addresses of its staging memory.
    """

    def __init__(self, *, num_steps: int = 3) -> None:
        self.host: set[int] = set()
        self.events: list[_LateEvent] = []
        self.num_waits = 0
        self._arrivals: list[Callable[[], object]] = []
        super().__init__(
            torch.device("cpu"),
            allocate=self._allocated,
            make_event=self._event,
            num_steps=num_steps,
        )

    def begin(self) -> None:
        """Start a step; the memory of the one that had its place is spoilt."""
        super().begin()
        for memory, _ in self._ring[self._place]._chunks:
            memory.fill_(SPOILT)

    def download(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return memory that is filled when the step's event has been waited for."""
        host = super().download(tensor)
        host.view(-1).view(torch.uint8).fill_(SPOILT)
        self._arrivals.append(lambda: host.copy_(tensor))
        return host

    def _allocated(self, num_bytes: int) -> torch.Tensor:
        memory = torch.full((num_bytes,), SPOILT, dtype=torch.uint8)
        self.host.add(memory.untyped_storage().data_ptr())
        return memory

    def _event(self) -> _LateEvent:
        event = _LateEvent(self, self._arrivals)
        self._arrivals = []
        self.events.append(event)
        return event
