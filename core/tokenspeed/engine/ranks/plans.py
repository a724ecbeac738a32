"""How plans get from rank 0 to the others: a ring in shared memory, a group between hosts.

Every plan goes to all of them as the same bytes. An empty message is the end; LOOK asks.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from typing import TYPE_CHECKING, Protocol

from tokenspeed.engine.ranks.health import board_bytes
from tokenspeed.scheduler import PlanRing

if TYPE_CHECKING:
    from collections.abc import Callable

RING_BYTES = 1 << 22
"""Holds hundreds of steps' plans; longer ones pass in pieces."""
_PATIENCE_US = 100_000
END = b""
LOOK = b"look"
"""Between plans: a worker says which of its moves between tiers have ended. No plan is so short."""


class PlanSender(Protocol):
    """Rank 0's end."""

    def send(self, message: bytes) -> None:
        """Send to the workers; waits where one has no room."""
        ...


class PlanReceiver(Protocol):
    """A worker's end."""

    def receive(self) -> bytes:
        """Return the next message."""
        ...


class RingSender:
    """To the workers of rank 0's host.

    Args:
        check: called while there is no room; raises when that will not change.
    """

    def __init__(self, memory: mmap.mmap, num_readers: int, check: Callable[[], None]) -> None:
        self._ring = PlanRing(memory, RING_BYTES, num_readers)
        self._check = check

    def send(self, message: bytes) -> None:
        """Send to every worker of this host."""
        while not self._ring.write(message, _PATIENCE_US):
            self._check()


class RingReceiver:
    """A worker's end of the ring."""

    def __init__(self, memory: mmap.mmap, num_readers: int, reader: int) -> None:
        self._ring = PlanRing(memory, RING_BYTES, num_readers)
        self._reader = reader

    def receive(self) -> bytes:
        """Return the next message; the death of rank 0 is noticed by whoever sends beats."""
        while True:
            message = self._ring.read(self._reader, _PATIENCE_US)
            if message is not None:
                return message


def make_ring_memory(num_readers: int) -> int:
    """Return the descriptor of memory that goes with the last process that has it."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("tokenspeed-plans")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, ring_memory_bytes(num_readers))
    return descriptor


def map_ring_memory(descriptor: int, num_readers: int) -> mmap.mmap:
    """Return the memory behind a descriptor."""
    return mmap.mmap(descriptor, ring_memory_bytes(num_readers))


def ring_memory_bytes(num_readers: int) -> int:
    """Return the bytes of memory that so many workers share with rank 0: the ring, the board."""
    return PlanRing.memory_bytes(RING_BYTES, num_readers) + board_bytes(num_readers)
