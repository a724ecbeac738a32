"""A KV store is not trusted with answers: what it returns is compared with what it was given.

Checksums of the records that this engine wrote are kept here, computed in a thread beside the
store's own work; a call is reported when both are done. A record found at the start has none yet:
for it the store's own check counts.
"""

from __future__ import annotations

import zlib
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.contracts.kv_store import StoreDone
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future

    from tokenspeed.contracts.kv_store import KVStore, StoreFacts


@dataclass(slots=True)
class _Call:
    """A put whose checksum is under way, or a get whose record is to be checked.

    Args:
        found: checksum of the buffer; of a get, started when the store has filled it.
        ok: what the store reported; None: nothing yet.
    """

    key: bytes
    buffer: memoryview
    is_put: bool
    found: Future[int] | None = None
    ok: bool | None = None


class CheckedStore:
    """A KVStore around another. Thread: the engine's only; checksums have one of their own."""

    def __init__(self, store: KVStore) -> None:
        self.facts: StoreFacts = store.facts
        self.num_damaged = 0
        self._store = store
        self._calls: dict[int, _Call] = {}
        self._ready: deque[int] = deque()
        self._checksums: dict[bytes, int] = {}
        self._lost: list[bytes] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-checks")

    def put(self, key: bytes, tag: bytes, data: memoryview) -> int:
        """Start to keep a record, and to compute its checksum."""
        self._checksums.pop(key, None)
        ticket = self._store.put(key, tag, data)
        found = self._thread.submit(zlib.crc32, data)
        self._calls[ticket] = _Call(key, data, is_put=True, found=found)
        return ticket

    def get(self, key: bytes, tag: bytes, into: memoryview) -> int:
        """Start to read a record."""
        ticket = self._store.get(key, tag, into)
        self._calls[ticket] = _Call(key, into, is_put=False)
        return ticket

    def poll(self) -> Sequence[StoreDone]:
        """Return what ended and was checked."""
        for item in self._store.poll():
            call = self._calls[item.ticket]
            call.ok = item.ok
            if not call.is_put and item.ok and call.key in self._checksums:
                call.found = self._thread.submit(zlib.crc32, call.buffer)
            self._ready.append(item.ticket)
        done = []
        for _ in range(len(self._ready)):
            ticket = self._ready.popleft()
            call = self._calls[ticket]
            if call.found is not None and not call.found.done():
                self._ready.append(ticket)
                continue
            done.append(StoreDone(ticket, self._is_right(self._calls.pop(ticket))))
        return done

    def keys(self) -> Sequence[bytes]:
        """Return the keys of all records."""
        return self._store.keys()

    def take_lost(self) -> Sequence[bytes]:
        """Return keys whose records were dropped, or came back damaged."""
        dropped = list(self._store.take_lost())
        for key in dropped:
            self._checksums.pop(key, None)
        lost, self._lost = dropped + self._lost, []
        return lost

    def close(self) -> None:
        """Close the store."""
        self._store.close()
        self._thread.shutdown()

    def _is_right(self, call: _Call) -> bool:
        if not call.ok or call.found is None:
            return bool(call.ok)
        if call.is_put:
            self._checksums[call.key] = call.found.result()
            return True
        # A put since then is of equal content: a key names it.
        if call.found.result() == self._checksums.get(call.key, call.found.result()):
            return True
        del self._checksums[call.key]
        self.num_damaged += 1
        self._lost.append(call.key)
        LOGGER.warning(
            "KV store: record %s came back damaged, %d so far; its block is computed again",
            call.key.hex(), self.num_damaged,
        )  # fmt: skip
        return False
