"""Takes the server's port before anything heavy starts; every API process inherits the socket."""

from __future__ import annotations

import errno
import socket

from tokenspeed.errors import ConfigError

BACKLOG = 2048


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket.

    Clients that connect while the model loads wait in the backlog until the first worker is ready.

    Raises:
        ConfigError: no such host, a port in use or not allowed.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"port is {port}, allowed is [0, 65535]; change --port")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {host!r}: {error}; give an address of this machine with --host"
        ) from error
    listener = socket.socket(family, kind, protocol)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigError(_reason(host, port, error)) from error
    return listener


def url_of(listener: socket.socket) -> str:
    """Return the base URL that clients on this machine use."""
    host, port = listener.getsockname()[:2]
    if listener.family == socket.AF_INET6:
        host = f"[{'::1' if host == '::' else host}]"
    return f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}/v1"


def _reason(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return (
            f"cannot listen on {host}:{port}: the port is in use; "
            "stop what uses it, or choose another with --port (0 takes a free one)"
        )
    return f"cannot listen on {host}:{port}: {error.strerror}; change --host or --port"
