"""The folder of one server: short enough for a socket, and gone after its launcher is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tokenspeed.server.run_folder import MAX_SOCKET_PATH_BYTES, run_folder

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def short_tmp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="t") as folder:
        monkeypatch.setattr(tempfile, "tempdir", folder)
        yield Path(folder)


def test_the_folder_is_removed_at_the_end(short_tmp: Path) -> None:
    with run_folder() as folder:
        assert folder.parent == short_tmp
    assert not folder.exists()


def test_the_folder_of_a_killed_launcher_is_removed_and_a_live_one_kept(short_tmp: Path) -> None:
    program = (
        "import os, sys, tempfile\n"
        "from tokenspeed.server.run_folder import run_folder\n"
        "tempfile.tempdir = sys.argv[1]\n"
        "with run_folder() as folder:\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(short_tmp)], check=False, timeout=120)
    assert len(list(short_tmp.iterdir())) == 1
    with run_folder() as first, run_folder() as second:
        assert set(short_tmp.iterdir()) == {first, second}


@pytest.mark.parametrize("name", ["tokenspeed-12345678", "tokenspeed-groups-0", "tokenspeed-my"])
def test_folders_of_others_are_left_alone(name: str, short_tmp: Path) -> None:
    other = short_tmp / name
    other.mkdir()
    (other / "notes").touch()
    os.utime(other, (0, 0))
    with run_folder():
        assert other.exists()


def test_a_folder_of_another_user_is_left_alone(
    short_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = short_tmp / "tokenspeed-12345678"
    other.mkdir()
    (other / "lock").touch()
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    with run_folder():
        assert other.exists()
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(short_tmp))
    with run_folder():
        assert not other.exists()


@pytest.mark.parametrize("left", [[], ["lock.new"]])
def test_a_launcher_killed_before_its_lock_leaves_nothing_for_long(
    left: list[str], short_tmp: Path
) -> None:
    other = short_tmp / "tokenspeed-12345678"
    other.mkdir()
    for name in left:
        (other / name).touch()
    with run_folder():
        assert other.exists()  # perhaps its lock comes yet
    os.utime(other, (0, 0))
    with run_folder():
        assert not other.exists()


def test_each_prefix_looks_after_its_own(short_tmp: Path) -> None:
    (short_tmp / "ts-12345678").mkdir()
    (short_tmp / "ts-12345678" / "lock").touch()
    with run_folder():
        assert (short_tmp / "ts-12345678").exists()
    with run_folder("ts-") as folder:
        assert [*short_tmp.iterdir()] == [folder]


def test_a_long_temporary_folder_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    with run_folder() as folder:
        assert len(f"{folder}/engine") <= MAX_SOCKET_PATH_BYTES
        assert not list(long.iterdir())
