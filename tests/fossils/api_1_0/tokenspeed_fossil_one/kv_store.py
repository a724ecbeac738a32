"""Records in a dictionary."""

from __future__ import annotations

from tokenspeed_sdk import StoreDone, StoreFacts


class Store:
    def __init__(self, *, namespace, folder, capacity_bytes):
        self.facts = StoreFacts(durable=False, capacity_bytes=capacity_bytes)
        self._records = {}
        self._done = []
        self._lost = []
        self._tickets = 0

    def put(self, key, tag, data):
        self._records.pop(key, None)
        size = len(tag) + data.nbytes
        if size > self.facts.capacity_bytes:
            return self._report(False)
        while self._held() + size > self.facts.capacity_bytes:
            oldest = next(iter(self._records))
            del self._records[oldest]
            self._lost.append(oldest)
        self._records[key] = (bytes(tag), bytes(data))
        return self._report(True)

    def get(self, key, tag, into):
        found = self._records.get(key)
        if found is None or found[0] != tag or len(found[1]) != into.nbytes:
            return self._report(False)
        into[:] = found[1]
        self._records[key] = self._records.pop(key)
        return self._report(True)

    def poll(self):
        done, self._done = self._done, []
        return done

    def keys(self):
        return tuple(self._records)

    def take_lost(self):
        lost, self._lost = self._lost, []
        return lost

    def close(self):
        self._records.clear()

    def _held(self):
        return sum(len(tag) + len(data) for tag, data in self._records.values())

    def _report(self, ok):
        self._tickets += 1
        self._done.append(StoreDone(self._tickets, ok))
        return self._tickets
