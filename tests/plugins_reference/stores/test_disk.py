"""The disk store: restarts, kills in the middle of a write, damaged files, bounds, one owner."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.support.kv_records import data_of, finish, get, key_of, put, tag_of
from tests.support.source_tree import ROOT

from tokenspeed_reference.stores import disk
from tokenspeed_reference.stores.disk import DiskStore
from tokenspeed_sdk import ConfigError

WRITER = """
import sys
from tests.support.kv_records import data_of, key_of, tag_of
from tokenspeed_reference.stores.disk import DiskStore
store = DiskStore(namespace="test", folder=sys.argv[1], capacity_bytes=1 << 30)
number_of, number = {}, 0
print("open", flush=True)
while True:
    number_of[store.put(key_of(number), tag_of(number), data_of(number, 300_000))] = number
    number += 1
    while len(number_of) > 4:
        for done in store.poll():
            print(number_of.pop(done.ticket), flush=True)
"""


@contextmanager
def opened(
    folder: Path, *, capacity_bytes: int = 1 << 30, namespace: str = "test"
) -> Iterator[DiskStore]:
    store = DiskStore(namespace=namespace, folder=str(folder), capacity_bytes=capacity_bytes)
    try:
        yield store
    finally:
        store.close()


def record_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("*/??/*"))


def test_a_restart_finds_the_records_again_in_the_order_of_their_use(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        for number in (1, 2, 3):
            put(store, number)
            time.sleep(0.01)
        assert get(store, 1) is not None
    with opened(tmp_path, capacity_bytes=3300) as store:
        assert set(store.keys()) == {key_of(1), key_of(2), key_of(3)}
        put(store, 4)
        assert list(store.take_lost()) == [key_of(2)]
        assert get(store, 1) == bytes(data_of(1, 1000))


def test_a_writer_killed_at_any_moment_leaves_only_whole_records(tmp_path: Path) -> None:
    seed = int(os.environ.get("TOKENSPEED_TEST_SEED", random.SystemRandom().randrange(1 << 30)))
    print(f"TOKENSPEED_TEST_SEED={seed}")
    moments = random.Random(seed)
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == "open\n"
            time.sleep(moments.uniform(0.01, 0.2))
            child.send_signal(signal.SIGKILL)
            acknowledged = [int(line) for line in child.stdout.read().split("\n")[:-1]]
        with opened(tmp_path) as store:
            assert not list(tmp_path.glob("*/??/*.partial"))
            keys = set(store.keys())
            assert keys >= {key_of(number) for number in acknowledged}
            for number in range(len(keys) + 8):
                if key_of(number) in keys:
                    assert get(store, number, 300_000) == bytes(data_of(number, 300_000))


@pytest.mark.parametrize("damage", ["cut", "flip", "grow", "head", "empty", "gone"])
def test_a_damaged_file_is_not_ok_and_deleted(tmp_path: Path, damage: str) -> None:
    with opened(tmp_path) as store:
        put(store, 1)
    (path,) = record_files(tmp_path)
    data = bytearray(path.read_bytes())
    with opened(tmp_path) as store:
        if damage == "gone":
            path.unlink()
        else:
            data = {"cut": data[:-1], "grow": data + b"x", "empty": data[:0]}.get(damage, data)
            if damage in ("flip", "head"):
                data[-7 if damage == "flip" else 3] ^= 0x10
            path.write_bytes(data)
        assert get(store, 1) is None
        assert not record_files(tmp_path)
        assert list(store.take_lost()) == [key_of(1)]
        assert put(store, 1)
        assert get(store, 1) is not None


def test_what_a_killed_write_left_is_deleted_and_foreign_files_are_not(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 1)
    (path,) = record_files(tmp_path)
    path.with_name(path.name + ".partial").write_bytes(b"half")
    foreign = path.with_name("notes.txt")
    foreign.write_text("mine")
    with opened(tmp_path) as store:
        assert list(store.keys()) == [key_of(1)]
    assert record_files(tmp_path) == sorted([path, foreign])


def test_folders_and_links_with_a_records_name_are_left_alone(tmp_path: Path) -> None:
    with opened(tmp_path) as store:
        put(store, 1)
    (path,) = record_files(tmp_path)
    folder, half, link = (
        path.with_name(f"{n:032x}{end}") for n, end in ((1, ""), (2, ".partial"), (3, ""))
    )
    folder.mkdir()
    half.mkdir()
    link.symlink_to(path)
    with opened(tmp_path) as store:
        assert list(store.keys()) == [key_of(1)]
    assert all((folder.is_dir(), half.is_dir(), link.is_symlink()))


def test_a_folder_that_cannot_be_cleaned_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path) as store:
        put(store, 1)
    (path,) = record_files(tmp_path)
    path.with_name(path.name + ".partial").write_bytes(b"half")

    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(1, "Operation not permitted", str(path))

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(ConfigError, match=r"\.partial, which cannot be"):
        opened(tmp_path).__enter__()
    monkeypatch.undo()
    with opened(tmp_path) as store:
        assert list(store.keys()) == [key_of(1)]


def test_a_full_disk_is_an_answer_and_the_old_record_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(tmp_path) as store:
        put(store, 1)

        def no_space(descriptor: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", no_space)
        assert not put(store, 1, num_bytes=2000)
        assert not any(put(store, number) for number in range(2, 30))
        assert len(caplog.records) == 1, "a full disk does not fill the log"
        monkeypatch.undo()
        assert get(store, 1) == bytes(data_of(1, 1000))
        assert list(store.keys()) == [key_of(1)]
        assert len(record_files(tmp_path)) == 1


def test_files_never_exceed_the_bound_over_all_namespaces(tmp_path: Path) -> None:
    with opened(tmp_path, namespace="yesterday") as store:
        for number in range(10):
            put(store, number)
    with opened(tmp_path, capacity_bytes=8000) as store:
        assert list(store.keys()) == []
        for number in range(20):
            put(store, number)
            assert sum(path.stat().st_size for path in record_files(tmp_path)) <= 8000
        assert len(store.keys()) == 7
        assert not record_files(tmp_path / "yesterday")


def test_a_folder_has_one_owner_at_a_time(tmp_path: Path) -> None:
    with opened(tmp_path), pytest.raises(ConfigError, match="used by another process"):
        DiskStore(namespace="other", folder=str(tmp_path), capacity_bytes=1)
    with opened(tmp_path):
        pass


@pytest.mark.parametrize("folder", ["", "/proc/nowhere"])
def test_a_folder_that_cannot_be_used_is_refused_by_name(folder: str) -> None:
    with pytest.raises(ConfigError, match="folder"):
        DiskStore(namespace="test", folder=folder, capacity_bytes=1)


def test_too_many_calls_are_refused_and_still_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "MAX_CALLS_WAITING", 3)
    with opened(tmp_path) as store:
        tickets = [store.put(key_of(n), tag_of(n), data_of(n, 1000)) for n in range(20)]
        done = finish(store, tickets)
        assert [item.ok for item in done[:3]] == [True] * 3
        assert not all(item.ok for item in done)
        assert {key_of(n) for n in range(20) if done[n].ok} == set(store.keys())
