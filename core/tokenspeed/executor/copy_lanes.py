"""Lanes that copies between host and device run on: in the caller's stream, or beside it.

On a device whose copies are finished when they return there is nothing to order and nothing to wait
for. On others a lane is a stream, and an event says when a batch's bytes have arrived.
"""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator


class Batch:
    """Copies that are started together, and whose ends are reported together."""

    def __init__(self) -> None:
        self.notes: list[tuple[int, int]] = []

    def copy(self, target: torch.Tensor, source: torch.Tensor) -> None:
        """Start one copy of equal shapes."""
        target.copy_(source, non_blocking=True)

    def note(self, transfer_id: int, delay_polls: int) -> None:
        """Name what is reported when the batch is done, and after how many more polls."""
        self.notes.append((transfer_id, delay_polls))


class CopyLane(Protocol):
    """An ordered sequence of batches."""

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Start a batch; it is complete when the context ends."""
        ...

    def take_done(self) -> list[tuple[int, int]]:
        """Return the notes of finished batches; never blocks."""
        ...

    def is_busy(self) -> bool:
        """Say whether a note was not taken yet."""
        ...


class InlineLane:
    """Copies are done when they return."""

    def __init__(self) -> None:
        self._done: list[tuple[int, int]] = []

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Start a batch."""
        batch = Batch()
        yield batch
        self._done += batch.notes

    def take_done(self) -> list[tuple[int, int]]:
        """Return the notes of all batches."""
        done, self._done = self._done, []
        return done

    def is_busy(self) -> bool:
        """Say whether a note was not taken yet."""
        return bool(self._done)


class StreamLane:
    """Copies run on a stream of the device.

    Args:
        device: of the arena.
        beside: True: on a stream of its own, after what the caller's stream has been given so far
            (the blocks' last readers); False: in the caller's stream.
    """

    def __init__(self, device: torch.device, *, beside: bool) -> None:
        self._device = device
        self._own = torch.Stream(device) if beside else None
        self._flying: deque[tuple[torch.Event, list[tuple[int, int]]]] = deque()

    @contextmanager
    def batch(self) -> Iterator[Batch]:
        """Start a batch."""
        batch = Batch()
        current = torch.accelerator.current_stream(self._device)
        stream = self._own or current
        if self._own is not None:
            self._own.wait_stream(current)  # orders loads after the last reads of their targets
            torch.accelerator.set_stream(self._own)
        try:
            yield batch
        finally:
            torch.accelerator.set_stream(current)
        event = torch.Event(self._device)
        event.record(stream)
        self._flying.append((event, batch.notes))

    def take_done(self) -> list[tuple[int, int]]:
        """Return the notes of batches whose event has passed."""
        done: list[tuple[int, int]] = []
        while self._flying and self._flying[0][0].query():
            done += self._flying.popleft()[1]
        return done

    def is_busy(self) -> bool:
        """Say whether a note was not taken yet."""
        return bool(self._flying)


def copy_lanes(device: torch.device) -> tuple[CopyLane, CopyLane]:
    """Return the lanes off the device and onto it."""
    if device.type == "cpu":
        return InlineLane(), InlineLane()
    return StreamLane(device, beside=False), StreamLane(device, beside=True)
