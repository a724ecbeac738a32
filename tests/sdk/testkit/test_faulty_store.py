"""The faulty store fails as planned, and never lies about it."""

from __future__ import annotations

from tests.support.kv_records import data_of, finish, key_of, tag_of

from tokenspeed_reference.stores.memory import MemoryStore
from tokenspeed_sdk import Faults
from tokenspeed_sdk.testkit.faulty_store import FaultyStore


def test_what_is_ok_is_right_and_the_rest_is_reported() -> None:
    faults = Faults(7, fail_share=0.3, corrupt_share=0.3, max_delay_polls=5)
    store = FaultyStore(MemoryStore(namespace="", folder="", capacity_bytes=1 << 20), faults)
    puts = finish(store, [store.put(key_of(n), tag_of(n), data_of(n, 64)) for n in range(100)])
    assert 20 < sum(done.ok for done in puts) < 80
    assert {key_of(n) for n in range(100) if puts[n].ok} == set(store.keys())
    buffers = [memoryview(bytearray(64)) for _ in range(100)]
    gets = finish(store, [store.get(key_of(n), tag_of(n), buffers[n]) for n in range(100)])
    good = [n for n in range(100) if gets[n].ok]
    assert 5 < len(good) < sum(done.ok for done in puts)
    assert all(buffers[n] == data_of(n, 64) for n in good)
