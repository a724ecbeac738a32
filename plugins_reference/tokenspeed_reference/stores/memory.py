"""KV store in the engine's own memory: the plainest store, and one that a test can look into.

Every call is done when it returns, and reported by the next poll. Nothing outlives the process.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed_reference.stores.recency import Recency
from tokenspeed_sdk import StoreDone, StoreFacts

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class _Record:
    tag: bytes
    data: bytearray
    checksum: int


class MemoryStore:
    """KVStore of records in a dictionary. Thread: its owner's."""

    def __init__(self, *, namespace: str, folder: str, capacity_bytes: int) -> None:
        self.facts = StoreFacts(durable=False, capacity_bytes=capacity_bytes)
        self._records: dict[bytes, _Record] = {}
        self._recency: Recency[bytes] = Recency(capacity_bytes)
        self._done: list[StoreDone] = []
        self._lost: list[bytes] = []
        self._num_calls = 0

    def put(self, key: bytes, tag: bytes, data: memoryview) -> int:
        """Keep a copy, if it fits at all."""
        num_bytes = len(tag) + data.nbytes
        if num_bytes > self.facts.capacity_bytes:
            return self._report(ok=False)
        self._recency.remove(key)
        for dropped in self._recency.make_room(num_bytes):
            self._drop(dropped)
        self._records[key] = _Record(tag, bytearray(data), zlib.crc32(data))
        self._recency.add(key, num_bytes)
        return self._report(ok=True)

    def get(self, key: bytes, tag: bytes, into: memoryview) -> int:
        """Copy the record into the buffer; a damaged one is dropped."""
        record = self._records.get(key)
        if record is None or record.tag != tag or len(record.data) != into.nbytes:
            return self._report(ok=False)
        if zlib.crc32(record.data) != record.checksum:
            self._recency.remove(key)
            self._drop(key)
            return self._report(ok=False)
        into[:] = record.data
        self._recency.touch(key)
        return self._report(ok=True)

    def poll(self) -> Sequence[StoreDone]:
        """Return the calls since the last poll."""
        done, self._done = self._done, []
        return done

    def keys(self) -> Sequence[bytes]:
        """Return all keys."""
        return list(self._records)

    def take_lost(self) -> Sequence[bytes]:
        """Return the keys dropped since the last call."""
        lost, self._lost = self._lost, []
        return [key for key in lost if key not in self._records]

    def close(self) -> None:
        """Forget everything."""
        self._records.clear()
        self._recency = Recency(self.facts.capacity_bytes)

    def damage(self, key: bytes) -> None:
        """Flip a bit of a record, for tests."""
        self._records[key].data[0] ^= 1

    def _drop(self, key: bytes) -> None:
        del self._records[key]
        self._lost.append(key)

    def _report(self, *, ok: bool) -> int:
        self._num_calls += 1
        self._done.append(StoreDone(self._num_calls, ok))
        return self._num_calls
