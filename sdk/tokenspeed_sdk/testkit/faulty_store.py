"""A KV store that fails on purpose: wraps a real one and spoils its calls as planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.kv_store import StoreDone

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.contracts.faults import Fault, Faults
    from tokenspeed.contracts.kv_store import KVStore


class FaultyStore:
    """KVStore with planned faults. A corrupted read scribbles its buffer and is found out.

    Args:
        store: the one that does the work.
        faults: drawn once a call.
    """

    def __init__(self, store: KVStore, faults: Faults) -> None:
        self.facts = store.facts
        self._store = store
        self._faults = faults
        self._num_calls = 0
        self._inner: dict[int, int] = {}  # ticket of `store` -> ours
        self._fault_of: dict[int, tuple[Fault, memoryview | None]] = {}
        self._waiting: list[tuple[int, StoreDone]] = []  # polls left, what is then reported

    def put(self, key: bytes, tag: bytes, data: memoryview) -> int:
        """Put, unless the fault says that it fails."""
        ticket, fault = self._begin()
        if fault.fails or fault.corrupts:
            self._waiting.append((fault.delay_polls, StoreDone(ticket, ok=False)))
        else:
            self._follow(self._store.put(key, tag, data), ticket, fault, None)
        return ticket

    def get(self, key: bytes, tag: bytes, into: memoryview) -> int:
        """Get, unless the fault says that it fails or is corrupted."""
        ticket, fault = self._begin()
        if fault.fails:
            self._waiting.append((fault.delay_polls, StoreDone(ticket, ok=False)))
        else:
            self._follow(self._store.get(key, tag, into), ticket, fault, into)
        return ticket

    def poll(self) -> Sequence[StoreDone]:
        """Report what is due."""
        for done in self._store.poll():
            ticket = self._inner.pop(done.ticket)
            fault, into = self._fault_of.pop(ticket)
            if fault.corrupts and into is not None:
                into.cast("B")[0] ^= 0xFF
            ok = done.ok and not fault.corrupts
            self._waiting.append((fault.delay_polls, StoreDone(ticket, ok)))
        due = [done for polls, done in self._waiting if polls == 0]
        self._waiting = [(polls - 1, done) for polls, done in self._waiting if polls > 0]
        return due

    def keys(self) -> Sequence[bytes]:
        """Return the wrapped store's."""
        return self._store.keys()

    def take_lost(self) -> Sequence[bytes]:
        """Return the wrapped store's."""
        return self._store.take_lost()

    def close(self) -> None:
        """Close the wrapped store."""
        self._store.close()

    def _begin(self) -> tuple[int, Fault]:
        self._num_calls += 1
        return self._num_calls, self._faults.draw()

    def _follow(self, inner: int, ticket: int, fault: Fault, into: memoryview | None) -> None:
        self._inner[inner] = ticket
        self._fault_of[ticket] = (fault, into)
