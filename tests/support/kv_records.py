"""Records for KV stores: keys, tags and data that follow from a number."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

from tokenspeed_sdk import KVStore, StoreDone


def key_of(number: int) -> bytes:
    return hashlib.blake2b(number.to_bytes(8, "little"), digest_size=16).digest()


def tag_of(number: int) -> bytes:
    return number.to_bytes(8, "little") * 4


def data_of(number: int, num_bytes: int) -> memoryview:
    block = hashlib.sha256(number.to_bytes(8, "little")).digest()
    return memoryview((block * (num_bytes // len(block) + 1))[:num_bytes])


def finish(store: KVStore, tickets: Sequence[int], *, timeout_s: float = 30.0) -> list[StoreDone]:
    """Poll until all calls are reported; return the reports in the order of the tickets."""
    done: dict[int, StoreDone] = {}
    deadline_s = time.monotonic() + timeout_s
    while not done.keys() >= set(tickets):
        assert time.monotonic() < deadline_s, f"reported in time: {sorted(done)} of {tickets}"
        done |= {item.ticket: item for item in store.poll()}
        time.sleep(0.0005)
    return [done[ticket] for ticket in tickets]


def put(store: KVStore, number: int, num_bytes: int = 1000) -> bool:
    ticket = store.put(key_of(number), tag_of(number), data_of(number, num_bytes))
    return finish(store, [ticket])[0].ok


def get(store: KVStore, number: int, num_bytes: int = 1000) -> bytes | None:
    """Return the record's data, None where the store says that it has none."""
    into = memoryview(bytearray(num_bytes))
    ticket = store.get(key_of(number), tag_of(number), into)
    return bytes(into) if finish(store, [ticket])[0].ok else None
