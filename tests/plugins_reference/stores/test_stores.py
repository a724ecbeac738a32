"""What both stores promise, met through the hook that offers them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.kv_records import data_of, finish, get, key_of, put, tag_of

from tokenspeed.plugins import load_plugins
from tokenspeed_sdk import KVStore

Open = Callable[..., KVStore]


@pytest.fixture(params=["memory", "disk"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    offers = load_plugins(("reference",), role="engine").offers("kv_store")
    load = {item.offer.name: item.offer.load for item in offers}[request.param]

    def make(capacity_bytes: int = 1 << 20) -> KVStore:
        store: KVStore = load(
            namespace="test", folder=str(tmp_path / "kv"), capacity_bytes=capacity_bytes
        )
        request.addfinalizer(store.close)
        return store

    return make


def test_a_record_comes_back_as_it_was_put(opened: Open) -> None:
    store = opened()
    assert put(store, 1)
    assert get(store, 1) == bytes(data_of(1, 1000))
    assert list(store.keys()) == [key_of(1)]


def test_what_was_never_put_is_not_there(opened: Open) -> None:
    assert get(opened(), 1) is None


def test_equal_keys_of_other_content_are_told_apart(opened: Open) -> None:
    store = opened()
    put(store, 1)
    into = memoryview(bytearray(1000))
    ticket = store.get(key_of(1), tag_of(2), into)
    assert not finish(store, [ticket])[0].ok
    assert get(store, 1) is not None, "the record is still good for its owner"


def test_a_record_of_another_length_is_not_ok(opened: Open) -> None:
    store = opened()
    put(store, 1, num_bytes=1000)
    assert get(store, 1, num_bytes=999) is None


def test_a_second_put_replaces_the_record(opened: Open) -> None:
    store = opened()
    put(store, 1, num_bytes=1000)
    assert put(store, 1, num_bytes=2000)
    assert get(store, 1, num_bytes=2000) == bytes(data_of(1, 2000))
    assert len(store.keys()) == 1


def test_the_least_recently_used_makes_room(opened: Open) -> None:
    store = opened(capacity_bytes=3300)
    for number in (1, 2, 3):
        assert put(store, number)
    assert get(store, 1) is not None
    assert put(store, 4)
    assert set(store.keys()) == {key_of(1), key_of(3), key_of(4)}
    assert list(store.take_lost()) == [key_of(2)]
    assert list(store.take_lost()) == []


def test_a_record_larger_than_the_store_is_refused_and_costs_nothing(opened: Open) -> None:
    store = opened(capacity_bytes=3300)
    put(store, 1)
    assert not put(store, 2, num_bytes=4000)
    assert list(store.keys()) == [key_of(1)]


def test_many_calls_under_way_are_each_reported_once(opened: Open) -> None:
    store = opened()
    puts = [store.put(key_of(n), tag_of(n), data_of(n, 1000)) for n in range(200)]
    buffers = [memoryview(bytearray(1000)) for _ in range(200)]
    gets = [store.get(key_of(n), tag_of(n), buffers[n]) for n in range(200)]
    assert all(done.ok for done in finish(store, puts + gets))
    assert len(set(puts + gets)) == 400
    for number, buffer in enumerate(buffers):
        assert buffer == data_of(number, 1000)
    assert store.poll() in ([], ())
