"""Stored responses: within their budget, the least recently used go first."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tokenspeed.errors import RequestError
from tokenspeed.server.responses.store import Record, ResponseStore

if TYPE_CHECKING:
    from pathlib import Path

ROOM = 1000


def name(number: int) -> str:
    return f"resp_{number:024x}"


def record(number: int, *, size: int = 100, previous: str = "", owner: str = "o") -> Record:
    body = {"id": name(number), "output": [{"out": number}], "pad": "x" * size}
    return Record(owner=owner, previous=previous, given=[{"in": number}], body=body)


def is_there(store: ResponseStore, number: int) -> bool:
    try:
        store.get(name(number), "o")
    except RequestError:
        return False
    return True


def on_disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_bytes_stay_within_the_budget_and_the_oldest_go(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path, max_bytes=ROOM)
    for number in range(20):
        store.put(record(number))
        assert on_disk(tmp_path) == store.num_bytes <= ROOM
    there = [is_there(store, number) for number in range(20)]
    kept = sum(there)
    assert there == [False] * (20 - kept) + [True] * kept
    assert (kept, store.num_evicted) == (4, 16)


def test_what_was_read_since_stays_longer(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path, max_bytes=ROOM)
    for number in range(4):
        store.put(record(number))
    later = os.stat(tmp_path / str(os.getpid()) / name(0)).st_mtime + 10
    assert is_there(store, 0)
    os.utime(tmp_path / str(os.getpid()) / name(0), (later, later))  # clocks of files are coarse
    store.put(record(4))
    assert is_there(store, 0)
    assert not is_there(store, 1)


def test_one_that_is_larger_than_the_budget_is_not_kept(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path, max_bytes=ROOM)
    store.put(record(1, size=2000))
    assert not is_there(store, 1)
    assert store.num_bytes == 0


def test_a_chain_gives_its_items_oldest_first(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path, max_bytes=1 << 20)
    for number in range(1, 4):
        store.put(record(number, previous=name(number - 1) if number > 1 else ""))
    items = store.chain(name(3), "o")
    assert items == [{"in": 1}, {"out": 1}, {"in": 2}, {"out": 2}, {"in": 3}, {"out": 3}]
    store.delete(name(2), "o")
    with pytest.raises(RequestError, match=name(2)):
        store.chain(name(3), "o")


def test_other_processes_files_are_read_and_those_of_dead_ones_removed(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path, max_bytes=ROOM)
    store.put(record(1))
    other = tmp_path / str(os.getppid())
    (tmp_path / str(os.getpid())).rename(other)
    dead = tmp_path / "4194305"  # above the largest process id
    dead.mkdir()
    assert is_there(ResponseStore(tmp_path, max_bytes=ROOM), 1)
    assert not dead.exists()


@pytest.mark.parametrize("bad", ["", "resp_", "../../etc/passwd", "resp_" + "0" * 23 + "*"])
def test_only_ids_of_ours_are_looked_for(tmp_path: Path, bad: str) -> None:
    with pytest.raises(RequestError, match="is not stored here"):
        ResponseStore(tmp_path, max_bytes=ROOM).get(bad, "o")


def test_another_owner_finds_nothing(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path, max_bytes=ROOM)
    store.put(record(1, owner="a"))
    for ask in (store.get, store.delete, store.chain):
        with pytest.raises(RequestError, match="is not stored here"):
            ask(name(1), "b")
    assert store.get(name(1), "a").body["id"] == name(1)
