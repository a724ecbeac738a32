"""What a KV store returns is compared with what it was given, whatever the store says."""

from __future__ import annotations

import time

import pytest

from tokenspeed.engine.checked_store import CheckedStore
from tokenspeed_reference.stores.memory import MemoryStore

KEY, OTHER, TAG = b"k" * 16, b"o" * 16, b"tag"
DATA = bytes(range(256)) * 8


class TrustingStore(MemoryStore):
    """Says that all is well, whatever became of a record."""

    def get(self, key: bytes, tag: bytes, into: memoryview) -> int:
        """Return what there is, without a look."""
        into[:] = self._records[key].data
        return self._report(ok=True)


def stores() -> tuple[TrustingStore, CheckedStore]:
    inner = TrustingStore(namespace="test", folder="", capacity_bytes=1 << 20)
    return inner, CheckedStore(inner)


def result_of(store: CheckedStore, ticket: int) -> bool:
    """Wait for a call."""
    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s:
        for done in store.poll():
            assert done.ticket == ticket
            return done.ok
        time.sleep(0.001)
    raise AssertionError("the call was never reported")


def put(store: CheckedStore, key: bytes, data: bytes) -> bool:
    return result_of(store, store.put(key, TAG, memoryview(data)))


def get(store: CheckedStore, key: bytes) -> bytes | None:
    buffer = bytearray(len(DATA))
    is_ok = result_of(store, store.get(key, TAG, memoryview(buffer)))
    return bytes(buffer) if is_ok else None


def test_a_sound_record_comes_back() -> None:
    _, store = stores()
    assert put(store, KEY, DATA)
    assert get(store, KEY) == DATA
    assert store.num_damaged == 0
    store.close()


def test_a_damaged_record_is_refused_counted_and_reported_lost() -> None:
    inner, store = stores()
    put(store, KEY, DATA)
    put(store, OTHER, DATA[::-1])
    inner.damage(KEY)
    assert get(store, KEY) is None
    assert store.num_damaged == 1
    assert list(store.take_lost()) == [KEY]
    assert list(store.take_lost()) == []
    assert get(store, OTHER) == DATA[::-1]
    assert put(store, KEY, DATA), "written again, it counts again"
    assert get(store, KEY) == DATA
    store.close()


def test_a_record_of_an_earlier_start_is_the_stores_to_check() -> None:
    inner, store = stores()
    inner.put(KEY, TAG, memoryview(DATA))
    inner.poll()
    assert list(store.keys()) == [KEY]
    assert get(store, KEY) == DATA
    store.close()


def test_what_the_store_refuses_stays_refused() -> None:
    inner = MemoryStore(namespace="test", folder="", capacity_bytes=100)
    store = CheckedStore(inner)
    assert not put(store, KEY, DATA)
    assert get(store, KEY) is None
    assert list(store.take_lost()) == []
    store.close()


@pytest.mark.parametrize("count", [20])
def test_many_calls_are_each_reported_once(count: int) -> None:
    _, store = stores()
    tickets = {store.put(bytes([n]) * 16, TAG, memoryview(DATA)) for n in range(count)}
    reported: list[int] = []
    deadline_s = time.monotonic() + 60
    while len(reported) < count and time.monotonic() < deadline_s:
        reported += [done.ticket for done in store.poll() if done.ok]
    assert sorted(reported) == sorted(tickets)
    store.close()
