"""Who is there when ranks join a control line is never called missing."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from torch.distributed import HashStore

from tokenspeed_sdk import EngineError
from tokenspeed_sdk.collectives.links import KEY, Link, join

if TYPE_CHECKING:
    from collections.abc import Iterator

ENOUGH_S = 60.0
"""Longest that a join may take which nothing stands in the way of."""


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as threads:
        yield threads


def joined(store: HashStore, rank: int, size: int, timeout_s: float = ENOUGH_S) -> dict[int, Link]:
    return join(store, "g", "127.0.0.1", rank=rank, size=size, timeout_s=timeout_s)


def close(*groups: dict[int, Link]) -> None:
    for links in groups:
        for link in links.values():
            link.close()


def first_of(store: HashStore) -> tuple[socket.socket, str]:
    """Connect as a rank does; returns the connection and the word that it has to say."""
    host, port, word = json.loads(store.get(KEY))
    return socket.create_connection((host, port)), word


def test_a_rank_that_is_slow_to_speak_is_there(pool: ThreadPoolExecutor) -> None:
    store = HashStore()
    first = pool.submit(joined, store, 0, 3)
    connection, word = first_of(store)
    with connection:
        other = pool.submit(joined, store, 2, 3)
        time.sleep(1.2)  # connected, and then not given the processor
        connection.sendall(json.dumps({"word": word, "rank": 1}).encode() + b"\n")
        links = first.result()
        assert sorted(links) == [1, 2]
        close(links, other.result())


@pytest.mark.parametrize("words", [b"", b"GET / HTTP/1.1\r\n\r\n", b"5\n", b'{"word": "?"}\n'])
def test_strangers_keep_nobody_from_joining(pool: ThreadPoolExecutor, words: bytes) -> None:
    store = HashStore()
    first = pool.submit(joined, store, 0, 2)
    stranger, _ = first_of(store)
    with stranger:
        stranger.sendall(words)
        close(joined(store, 1, 2), first.result())


def test_a_rank_that_met_the_end_of_a_failed_start_joins_the_next(
    pool: ThreadPoolExecutor,
) -> None:
    store = HashStore()
    with socket.create_server(("127.0.0.1", 0)) as ending:
        store.set(KEY, json.dumps(["127.0.0.1", ending.getsockname()[1], "old"]))
        other = pool.submit(joined, store, 1, 2)
        ending.accept()[0].close()  # it came, and nobody answers it any more
    close(joined(store, 0, 2), other.result())


def test_who_arrived_in_time_is_there_however_late_it_is_noticed(pool: ThreadPoolExecutor) -> None:
    store, have_said = HashStore(), threading.Event()

    def set_and_stall(key: str, value: str) -> None:
        store.set(key, value)
        assert have_said.wait(ENOUGH_S)
        time.sleep(0.1)  # past the deadline

    stalled: Any = SimpleNamespace(set=set_and_stall)
    first = pool.submit(joined, stalled, 0, 4, 0.05)
    there = []
    for rank in (1, 3):
        connection, word = first_of(store)
        connection.sendall(json.dumps({"word": word, "rank": rank}).encode() + b"\n")
        there.append(connection)
    have_said.set()
    words = "ranks: rank 2 did not come within 0.05 s"
    with pytest.raises(EngineError, match=words):
        first.result()
    for connection in there:
        with connection:
            assert words in json.loads(connection.makefile().readline())["broken"]
