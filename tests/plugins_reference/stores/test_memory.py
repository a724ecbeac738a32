"""The memory store finds damage."""

from __future__ import annotations

from tests.support.kv_records import get, key_of, put

from tokenspeed_reference.stores.memory import MemoryStore


def test_a_damaged_record_is_dropped_and_reported_lost() -> None:
    store = MemoryStore(namespace="test", folder="", capacity_bytes=1 << 20)
    put(store, 1)
    store.damage(key_of(1))
    assert get(store, 1) is None
    assert list(store.keys()) == []
    assert list(store.take_lost()) == [key_of(1)]
    assert put(store, 1)
    assert get(store, 1) is not None
