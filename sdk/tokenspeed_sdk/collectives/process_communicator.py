"""Joins checked calls and the control line, for communicators whose ranks are processes."""

from __future__ import annotations

import ctypes
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from tokenspeed_sdk import EngineError
from tokenspeed_sdk.collectives.base import RankCommunicator
from tokenspeed_sdk.collectives.line import Line
from tokenspeed_sdk.collectives.meeting import forget, open_store, own_address

if TYPE_CHECKING:
    import torch
    from torch._C._distributed_c10d import Store


class ProcessCommunicator(RankCommunicator):
    """A group with a store and a control line; a subclass brings what moves the data.

    Args:
        compares: as of a Line.
    Raises:
        EngineError: the group is not complete within the time.
    """

    def __init__(
        self,
        *,
        rank: int,
        size: int,
        rendezvous: str,
        device: torch.device,
        timeout_s: float,
        compares: bool = False,
    ) -> None:
        super().__init__(rank=rank, size=size, device=device, timeout_s=timeout_s)
        self._rendezvous = rendezvous
        if size == 1:
            return
        try:
            store = open_store(rendezvous, rank=rank, timeout_s=timeout_s)
            address = own_address(rendezvous)
        except (RuntimeError, OSError) as error:
            raise EngineError(
                f"communicator {rendezvous!r} of {size} ranks: nobody serves its store within "
                f"{timeout_s:g} s ({error}); start rank 0, or correct the address"
            ) from error
        self._line = Line(
            store,
            name=rendezvous,
            address=address,
            rank=rank,
            size=size,
            timeout_s=timeout_s,
            on_break=self._broken,
            compares=compares,
        )
        try:
            self._connect(store, address)
            self._await_others(store)
            self._warm_up()
        except EngineError:
            self._line.leave("it could not join")
            raise
        except Exception as error:
            self._line.leave(f"it could not join: {error}")
            raise EngineError(
                f"communicator {rendezvous!r} of {size} ranks: rank {rank} could not join: "
                f"{self._line.reason or error}; look for the other ranks' errors"
            ) from error

    def _await_others(self, store: Store) -> None:
        """Wait until every rank has connected: nobody's first call meets a rank that failed."""
        store.set(f"connected-{self.rank}", "yes")
        keys = [f"connected-{rank}" for rank in range(self.size)]
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                store.wait(keys, timedelta(seconds=0.5))
            except RuntimeError:
                self._line.check()
                if time.monotonic() >= deadline_s:
                    raise
            else:
                return

    def _connect(self, store: Store, address: str) -> None:
        """Connect what moves the data; every rank is there."""
        raise NotImplementedError

    def _warm_up(self) -> None:
        """Make the first use of what moves the data, where that takes long; every rank does it."""

    def _broken(self) -> None:
        """Let go of calls under way; called once, from any thread, and must not wait."""

    def _disconnect(self) -> None:
        """End what moves the data, in peace."""

    def _leave(self, reason: str) -> None:
        if self.size > 1:
            self._line.leave(reason)
            self._disconnect()
            if self.rank == 0:  # every rank has met here, or the group is broken
                forget(self._rendezvous)


def never_destroyed(item: object) -> None:
    """Keep an object for good: its destructor would wait for calls that never end."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))
