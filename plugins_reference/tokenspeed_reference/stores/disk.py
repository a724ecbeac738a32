"""KV store on local disk: one file a record, written by one thread of its own.

    FOLDER/lock                     held while a store is open: one process a folder
    FOLDER/NAMESPACE/ab/abcd...     a record, named by its key in hexadecimal

All namespaces share the size bound, so that records of yesterday's model make room for today's.
The order of last use survives a restart as the files' modification times.
"""

from __future__ import annotations

import fcntl
import os
import queue
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed_reference.stores.recency import Recency
from tokenspeed_reference.stores.record_file import (
    HEAD_BYTES,
    TEMPORARY,
    DamagedRecordError,
    read_record,
    record_bytes,
    write_record,
)
from tokenspeed_sdk import KEY_BYTES, LOGGER, ConfigError, StoreDone, StoreFacts

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import IO

MAX_CALLS_WAITING = 4096
"""Calls that may wait for the thread; more are refused, so that a slow disk slows nobody."""

WARNING_INTERVAL_S = 60.0
"""A full disk fails every call: it is told once in this time, with how often."""


class DiskStore:
    """KVStore of files. Thread: its owner's; files belong to the thread that it starts.

    Raises:
        ConfigError: no folder is named, it cannot be made, or another process uses it.
    """

    def __init__(self, *, namespace: str, folder: str, capacity_bytes: int) -> None:
        if not folder:
            raise ConfigError(
                "kv_store 'disk' has no folder, a path is needed; set kv_store_folder"
            )
        self.facts = StoreFacts(durable=True, capacity_bytes=capacity_bytes)
        self._root = Path(folder)
        self._folder = self._root / namespace
        self._lock = _lock_folder(self._root, self._folder)
        self._recency: Recency[Path] = Recency(capacity_bytes)
        self._lost: deque[bytes] = deque()
        self._done: deque[StoreDone] = deque()
        self._num_calls = 0
        self._num_done = 0
        self._num_untold = 0
        self._next_warning_s = 0.0
        try:
            self._scan()
        except OSError as error:
            self._lock.close()
            raise ConfigError(
                f"kv_store_folder {folder} holds {error.filename}, which cannot be read or deleted "
                f"({error.strerror}); a folder of this process alone is needed; name another"
            ) from error
        self._keys = {bytes.fromhex(path.name) for path in self._recency if self._is_own(path)}
        self._calls: queue.SimpleQueue[tuple[int, Callable[[], bool]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="kv-store-disk", daemon=True)
        self._thread.start()

    def put(self, key: bytes, tag: bytes, data: memoryview) -> int:
        """Queue a write."""
        return self._start(lambda: self._write(key, tag, data))

    def get(self, key: bytes, tag: bytes, into: memoryview) -> int:
        """Queue a read."""
        return self._start(lambda: self._read(key, tag, into))

    def poll(self) -> Sequence[StoreDone]:
        """Return what the thread finished since the last poll."""
        done = [self._done.popleft() for _ in range(len(self._done))]
        self._num_done += len(done)
        return done

    def keys(self) -> Sequence[bytes]:
        """Return the keys of this namespace's records."""
        return list(self._keys.copy())

    def take_lost(self) -> Sequence[bytes]:
        """Return keys dropped or found damaged since the last call."""
        lost = [self._lost.popleft() for _ in range(len(self._lost))]
        return [key for key in lost if key not in self._keys]

    def close(self) -> None:
        """Finish what is queued, end the thread and let go of the folder."""
        self._calls.put(None)
        self._thread.join()
        self._lock.close()

    def _start(self, call: Callable[[], bool]) -> int:
        self._num_calls += 1
        if self._num_calls - self._num_done > MAX_CALLS_WAITING:
            self._done.append(StoreDone(self._num_calls, ok=False))
        else:
            self._calls.put((self._num_calls, call))
        return self._num_calls

    # ---- the thread's side

    def _work(self) -> None:
        while (item := self._calls.get()) is not None:
            ticket, call = item
            try:
                ok = call()
            except OSError as error:
                self._warn(str(error))
                ok = False
            self._done.append(StoreDone(ticket, ok))

    def _warn(self, problem: str) -> None:
        self._num_untold += 1
        now_s = time.monotonic()
        if now_s >= self._next_warning_s:
            LOGGER.warning(
                "KV store %s: %s (%d problems since last told)",
                self._root, problem, self._num_untold,
            )  # fmt: skip
            self._next_warning_s = now_s + WARNING_INTERVAL_S
            self._num_untold = 0

    def _write(self, key: bytes, tag: bytes, data: memoryview) -> bool:
        path, num_bytes = self._path(key), record_bytes(tag, data)
        if num_bytes > self.facts.capacity_bytes:
            return False
        # Room comes first: the bound holds even while the temporary file lies beside the old one.
        if path in self._recency:
            self._recency.touch(path)
        for dropped in self._recency.make_room(num_bytes):
            self._forget(dropped)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_record(path, tag, data)
        self._recency.add(path, num_bytes)
        self._keys.add(key)
        return True

    def _read(self, key: bytes, tag: bytes, into: memoryview) -> bool:
        path = self._path(key)
        if path not in self._recency:
            return False
        try:
            is_same = read_record(path, tag, into)
        except (DamagedRecordError, FileNotFoundError) as error:
            self._warn(f"{path} is damaged and dropped ({error!r})")
            self._recency.remove(path)
            self._forget(path)
            return False
        if is_same:
            self._recency.touch(path)
            os.utime(path)
        return is_same

    def _forget(self, path: Path) -> None:
        """Delete a record's file that `_recency` forgot."""
        path.unlink(missing_ok=True)
        if self._is_own(path):
            key = bytes.fromhex(path.name)
            self._keys.discard(key)
            self._lost.append(key)

    # ---- files

    def _scan(self) -> None:
        """Find the records of all namespaces, oldest use first; delete what a killed write left."""
        found = []
        for path in self._root.glob("*/??/*"):
            if not _is_key(path.name.removesuffix(TEMPORARY)) or not _is_plain_file(path):
                continue  # not ours
            stat = path.stat()
            if path.suffix == TEMPORARY or stat.st_size <= HEAD_BYTES:
                path.unlink()
            else:
                found.append((stat.st_mtime_ns, path, stat.st_size))
        for _, path, size in sorted(found):
            self._recency.add(path, size)
        for path in self._recency.make_room(0):
            path.unlink(missing_ok=True)

    def _is_own(self, path: Path) -> bool:
        return path.parent.parent == self._folder

    def _path(self, key: bytes) -> Path:
        name = key.hex()
        return self._folder / name[:2] / name


def _lock_folder(root: Path, folder: Path) -> IO[bytes]:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(root / "lock", "wb")  # noqa: SIM115 held until close
    except OSError as error:
        raise ConfigError(
            f"kv_store_folder {root} cannot be used: {error.strerror}; a folder that this process "
            "may write is needed; name another"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise ConfigError(
            f"kv_store_folder {root} is used by another process, one a folder is allowed; "
            "name another folder"
        ) from error
    return lock


def _is_plain_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _is_key(name: str) -> bool:
    return len(name) == 2 * KEY_BYTES and all(char in "0123456789abcdef" for char in name)
