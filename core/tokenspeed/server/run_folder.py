"""The folder of one running server: the engine's socket, its flight record, shared metrics.

Its `lock` file is locked as long as the launcher lives, so that a later start of the same user can
tell a folder left behind by a killed launcher from one in use, and remove it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

PREFIX = "tokenspeed-"
MAX_SOCKET_PATH_BYTES = 100
"""Addresses of local sockets hold 103 to 107 bytes, depending on the system."""
_LONGEST_NAME = f"{PREFIX}12345678/engine15"
_FALLBACK = Path("/tmp")
_MADE = "lock.new"
_MAKING_S = 60.0
"""Longest from a folder to its lock; one without a lock for longer lost its launcher in between."""


@contextlib.contextmanager
def run_folder(prefix: str = PREFIX) -> Iterator[Path]:
    """Make the folder, remove those of dead servers beside it, and remove it at the end.

    Args:
        prefix: of its name, and of those that are looked through.
    Raises:
        ConfigError: no temporary folder can hold a socket.
    """
    parent = _parent()
    _remove_stale(parent, prefix)
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
    lock = _lock(folder)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def _parent() -> Path:
    """Return the first temporary folder whose path leaves room for the socket's name."""
    candidates = (Path(tempfile.gettempdir()).absolute(), _FALLBACK)
    for parent in candidates:
        fits = len(os.fsencode(parent / _LONGEST_NAME)) <= MAX_SOCKET_PATH_BYTES
        if fits and os.access(parent, os.W_OK | os.X_OK):
            return parent
    raise ConfigError(
        f"no folder for the engine's socket: {candidates[0]} is too long or not writable, so is "
        f"{_FALLBACK}; a writable folder of at most "
        f"{MAX_SOCKET_PATH_BYTES - len(_LONGEST_NAME) - 1} bytes is needed; set TMPDIR to one"
    )


def _lock(folder: Path) -> int:
    """Make the locked file; it gets its name when it is locked, so none is seen unlocked."""
    made = folder / _MADE
    file = os.open(made, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    made.rename(folder / "lock")
    return file


def _remove_stale(parent: Path, prefix: str) -> None:
    name = re.compile(rf"{re.escape(prefix)}[a-z0-9_]{{8}}")
    for folder in parent.glob(f"{prefix}*"):
        if name.fullmatch(folder.name):
            with contextlib.suppress(OSError):  # in use, or gone meanwhile
                _remove_if_stale(folder)


def _remove_if_stale(folder: Path) -> None:
    """Remove a folder of this user whose launcher is gone.

    Raises:
        OSError: it is in use, or gone.
    """
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        return
    if not (folder / "lock").exists():
        if time.time() - status.st_mtime > _MAKING_S and {*os.listdir(folder)} <= {_MADE}:
            shutil.rmtree(folder, ignore_errors=True)
        return
    file = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(file)
