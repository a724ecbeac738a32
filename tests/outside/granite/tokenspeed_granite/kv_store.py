"""Cache blocks in the card's own memory behind a compressor."""

from __future__ import annotations

import zlib
from collections import OrderedDict

from tokenspeed_sdk import StoreDone, StoreFacts


class Store:
    """KVStore: records are compressed when they come; a call is done when it returns."""

    def __init__(self, *, capacity_bytes: int, **_: object) -> None:
        self.facts = StoreFacts(durable=False, capacity_bytes=capacity_bytes)
        self._records: OrderedDict[bytes, tuple[bytes, int, bytes]] = OrderedDict()
        self._used_bytes = 0
        self._done: list[StoreDone] = []
        self._lost: list[bytes] = []
        self._tickets = 0

    def put(self, key: bytes, tag: bytes, data: memoryview) -> int:
        """Compress and keep; the oldest go until it fits."""
        self._drop(key)
        packed = zlib.compress(data, 1)
        is_kept = len(packed) <= self.facts.capacity_bytes
        if is_kept:
            while self._used_bytes + len(packed) > self.facts.capacity_bytes:
                oldest = next(iter(self._records))
                self._drop(oldest)
                self._lost.append(oldest)
            self._records[key] = (tag, data.nbytes, packed)
            self._used_bytes += len(packed)
        return self._report(is_kept)

    def get(self, key: bytes, tag: bytes, into: memoryview) -> int:
        """Expand into the buffer if tag and length are those that were put."""
        held = self._records.get(key)
        if held is None or held[:2] != (tag, into.nbytes):
            return self._report(False)
        self._records.move_to_end(key)
        into.cast("B")[:] = zlib.decompress(held[2])
        return self._report(True)

    def poll(self) -> list[StoreDone]:
        """Return what was done since the last poll."""
        done, self._done = self._done, []
        return done

    def keys(self) -> list[bytes]:
        """Return the keys of all records."""
        return list(self._records)

    def take_lost(self) -> list[bytes]:
        """Return the keys that had to go."""
        lost, self._lost = self._lost, []
        return lost

    def close(self) -> None:
        """Let go of everything."""
        self._records.clear()

    def _drop(self, key: bytes) -> None:
        held = self._records.pop(key, None)
        if held is not None:
            self._used_bytes -= len(held[2])

    def _report(self, ok: bool) -> int:
        self._tickets += 1
        self._done.append(StoreDone(self._tickets, ok))
        return self._tickets
