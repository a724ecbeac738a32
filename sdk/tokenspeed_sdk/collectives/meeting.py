"""Where the ranks of a group find each other: a rendezvous text as a store of torch.distributed.

    tcp://HOST:PORT/NAME   a store that `serve_store` keeps, or else the group's rank 0
    any other text         a file in the temporary folder: ranks of one host, one user

Several groups share an address: NAME tells them apart.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, TCPStore

SCHEME = "tcp"
OLD_S = 3600.0
"""A file is read and written only while its ranks join, which takes minutes at the longest."""


def serve_store(host: str, port: int = 0, *, timeout_s: float = 60.0) -> tuple[TCPStore, str]:
    """Keep a store for groups of any ranks; for whoever starts them.

    Args:
        host: this machine's name or address, as the other ranks reach it.
        port: 0: any that is free.
    Returns:
        The store, which serves as long as it is kept, and "tcp://HOST:PORT": append "/NAME".
    """
    from torch._C._distributed_c10d import TCPStore

    store = TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=timeout_s),
    )
    return store, f"{SCHEME}://{host}:{store.port}"


def open_store(rendezvous: str, *, rank: int, timeout_s: float) -> Store:
    """Return the store in which the ranks of this rendezvous find each other.

    Raises:
        ValueError: the text begins with tcp:// and is no such address.
        torch.distributed.DistError: nobody serves the address within the time.
    """
    from torch._C._distributed_c10d import FileStore, PrefixStore

    if not rendezvous.startswith(f"{SCHEME}://"):
        if rank == 0:
            _forget_old()
        return FileStore(str(_file_of(rendezvous)), -1)
    host, port, name = _address(rendezvous)
    return PrefixStore(name, _tcp_store(host, port, is_first=rank == 0, timeout_s=timeout_s))


def loopback_only(rendezvous: str) -> bool:
    """Say whether all ranks are on this host, so that they need no other address than its own."""
    if not rendezvous.startswith(f"{SCHEME}://"):
        return True
    return _address(rendezvous)[0] in ("localhost", "127.0.0.1", "::1")


def forget(rendezvous: str) -> None:
    """Remove a rendezvous' file, once every rank has been there."""
    if not rendezvous.startswith(f"{SCHEME}://"):
        _file_of(rendezvous).unlink(missing_ok=True)


def _forget_old() -> None:
    """Remove the files of groups whose rank 0 was killed: nobody joins one that is so old."""
    for file in _folder().iterdir():
        with contextlib.suppress(OSError):  # another start removed it meanwhile
            if time.time() - file.lstat().st_mtime > OLD_S:
                file.unlink()


def own_address(rendezvous: str) -> str:
    """Return the address at which the other ranks reach this one."""
    import socket

    if loopback_only(rendezvous):
        return "127.0.0.1"
    host, port, _ = _address(rendezvous)
    family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(target)  # sends nothing: the system chooses the way, and with it the address
        return str(probe.getsockname()[0])


def _tcp_store(host: str, port: int, *, is_first: bool, timeout_s: float) -> TCPStore:
    from torch._C._distributed_c10d import TCPStore
    from torch.distributed import DistNetworkError

    timeout = timedelta(seconds=timeout_s)
    if is_first:
        try:
            return TCPStore(
                host,
                port,
                is_master=True,
                wait_for_workers=False,
                multi_tenant=True,
                timeout=timeout,
            )
        except DistNetworkError:
            pass  # it is served already
    return TCPStore(host, port, wait_for_workers=False, timeout=timeout)


def _address(rendezvous: str) -> tuple[str, int, str]:
    parts = urlsplit(rendezvous)
    name = parts.path.strip("/")
    if not parts.hostname or not parts.port or not name:
        raise ValueError(
            f"rendezvous is {rendezvous!r}; tcp://HOST:PORT/NAME is needed, with a NAME that no "
            "other group uses"
        )
    return parts.hostname, parts.port, name


def _file_of(rendezvous: str) -> Path:
    return _folder() / hashlib.sha256(rendezvous.encode()).hexdigest()[:24]


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"tokenspeed-groups-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
