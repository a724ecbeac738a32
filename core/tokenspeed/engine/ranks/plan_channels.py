"""Rank 0's ways to the other ranks: the ring to those of its host, the group to those of others.

    rank 0 --+-- ring in shared memory ----> ranks of this host    <-- board: steps that went well
             +-- broadcast of the group ---> ranks of other hosts  <-- messages

Either may be missing. Thread: the engine's, but for `reach`, which comes before all else.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tokenspeed.engine.ranks.health import HealthBoard
from tokenspeed.engine.ranks.plan_group import PlanGroup, join_plan_group
from tokenspeed.engine.ranks.plans import RingSender, make_ring_memory, map_ring_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenspeed.engine.choices import Choices
    from tokenspeed.engine.ranks.place import Place
    from tokenspeed.engine.ranks.workers import Worker


class PlanChannels:
    """Rank 0's ends.

    Args:
        check: called while a reader has no room; raises when that will not change.
    """

    def __init__(self, check: Callable[[], None]) -> None:
        self.descriptor = -1
        """Of the ring's memory; -1: no other rank is on this host."""
        self.readers: tuple[int, ...] = ()
        self.plan_ranks: tuple[int, ...] = ()
        self._check = check
        self._ring: RingSender | None = None
        self._board: HealthBoard | None = None
        self._group: PlanGroup | None = None

    def reach(self, hosts: Sequence[str]) -> None:
        """Say where the ranks are.

        Args:
            hosts: of every rank, rank 0's first.
        """
        own = hosts[0]
        self.readers = tuple(rank for rank, host in enumerate(hosts) if rank and host == own)
        elsewhere = tuple(rank for rank, host in enumerate(hosts) if host != own)
        self.plan_ranks = (0, *elsewhere) if elsewhere else ()
        if self.readers:
            self.descriptor = make_ring_memory(len(self.readers))

    @property
    def path(self) -> str:
        """The ring's memory as another process of this user opens it; "": there is none."""
        return f"/proc/{os.getpid()}/fd/{self.descriptor}" if self.descriptor >= 0 else ""

    def reader_of(self, rank: int) -> int:
        """Return which reader of the ring a rank is; -1: none, the group has it."""
        return self.readers.index(rank) if rank in self.readers else -1

    def join(self, choices: Choices, place: Place) -> None:
        """Join the group, if there are other hosts; their ranks do so at the same point."""
        if self.plan_ranks:
            self._group = join_plan_group(choices, place, self.plan_ranks)

    def open(self) -> None:
        """Begin to send."""
        if self.readers:
            memory = map_ring_memory(self.descriptor, len(self.readers))
            self._ring = RingSender(memory, len(self.readers), self._check)
            self._board = HealthBoard(memory, len(self.readers))

    def send(self, message: bytes) -> None:
        """Send to every other rank.

        Raises:
            OSError: one is gone.
        """
        if self._ring is not None:
            self._ring.send(message)
        if self._group is not None:
            self._group.send(message)

    def steps_well(self, worker: Worker) -> int:
        """Return how many steps a worker says went well."""
        reader = self.reader_of(worker.rank)
        return worker.well if reader < 0 or self._board is None else self._board.read(reader)

    def close(self) -> None:
        """Give everything back."""
        if self._group is not None:
            self._group.close()
        if self.descriptor >= 0:
            os.close(self.descriptor)
        self._group, self.descriptor = None, -1
