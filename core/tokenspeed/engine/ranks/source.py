"""Where an engine's further ranks come from when it does not start them: they connect.

The launcher listens for as long as the server is there; every engine that it starts inherits the
socket, so that ranks find the next engine where they found the last.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket

import msgspec

_BACKLOG = 1024


class RankSource(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine is told of the ranks that connect to it.

    Args:
        listener_fd: inherited listening socket.
        host: at which they reach this host; "": they are all on it.
        token: they must show it.
        device_index: which of the accelerators that rank 0 sees is its own.
    """

    listener_fd: int
    host: str
    token: str
    device_index: int = 0


class RankAddress(msgspec.Struct, frozen=True, kw_only=True):
    """What a further rank is told: where rank 0's launcher listens, and the token."""

    host: str
    port: int
    token: str


def listen_for_ranks(host: str) -> tuple[socket.socket, RankAddress]:
    """Listen where ranks on other hosts reach this one by `host`."""
    listener = socket.create_server(
        (host if is_loopback(host) else "", 0),
        family=socket.AF_INET6 if ":" in host else socket.AF_INET,
        backlog=_BACKLOG,
    )
    port: int = listener.getsockname()[1]
    return listener, RankAddress(host=host, port=port, token=secrets.token_hex(16))


def source_of(
    listener: socket.socket, address: RankAddress, *, device_index: int = 0
) -> RankSource:
    """Return what the engine is told of such ranks."""
    return RankSource(
        listener_fd=listener.fileno(),
        host="" if is_loopback(address.host) else address.host,
        token=address.token,
        device_index=device_index,
    )


def is_loopback(host: str) -> bool:
    """Say whether a name or address is this host to everybody."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
