"""Connections of a control line: rank 0 has one to each other rank; a message is a line of JSON.

Made once, by way of the group's store, with a word that only the group's ranks know.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import selectors
import socket
import time
from typing import TYPE_CHECKING, Any, cast

from tokenspeed_sdk import EngineError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch._C._distributed_c10d import Store

KEY = "line"
AGAIN_S = 0.05
"""Between looks at an address where nobody listens."""
SPARE_S = 2.0
"""What the others wait longer than rank 0, which can say who is missing."""
Message = dict[str, Any]


class Link:
    """One connection; sending is for any thread, receiving for one."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.early: list[Message] = []
        """What came with the first message."""
        self._received = b""

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self.socket.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; whoever is gone is noticed by receiving."""
        with contextlib.suppress(OSError):
            self.socket.sendall(json.dumps(message).encode() + b"\n")

    def receive(self) -> list[Message] | None:
        """Return the messages that are there, waiting for bytes; None: the other end is gone."""
        try:
            data = self.socket.recv(65536)
        except OSError:
            return None
        if not data:
            return None
        *lines, self._received = (self._received + data).split(b"\n")
        return [json.loads(line) for line in lines]

    def end(self) -> None:
        """Say that no more is sent; what was sent arrives, which closing at once may prevent."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        """Give the connection back; for whoever receives from it."""
        self.socket.close()


def join(
    store: Store, name: str, address: str, *, rank: int, size: int, timeout_s: float
) -> dict[int, Link]:
    """Return the links of this rank, once every rank of the group is there.

    Args:
        address: at which the other ranks reach this one.
    Raises:
        EngineError: a rank did not come within the time; names it.
    """
    deadline_s = time.monotonic() + timeout_s
    if rank == 0:
        return _receive_others(store, name, address, size, deadline_s, timeout_s)
    try:
        link, answer = _reach_first(store, rank, deadline_s)
    except (OSError, RuntimeError, ValueError) as error:
        raise _not_complete(name, size, "rank 0 did not come", timeout_s) from error
    if "complete" in answer:
        return {0: link}
    link.close()
    if "broken" in answer:
        raise EngineError(answer["broken"])
    raise _not_complete(name, size, "rank 0 left, or hangs", timeout_s)


def _reach_first(store: Store, rank: int, deadline_s: float) -> tuple[Link, Message]:
    """Return a link to rank 0 and its answer; {}: it left, or is silent.

    The store may still have the address of a start that failed: nobody listens there, or the one
    who does is about to end without an answer. So it is read again until the deadline.
    """
    while True:
        host, port, word = json.loads(store.get(KEY))
        left_s = deadline_s - time.monotonic()
        try:
            link = Link(socket.create_connection((host, port), timeout=max(left_s, AGAIN_S)))
        except OSError:
            if left_s < AGAIN_S:
                raise
        else:
            link.send({"word": word, "rank": rank})
            answer = _first(link, deadline_s + SPARE_S)
            if answer.keys() & {"complete", "broken"} or deadline_s - time.monotonic() < AGAIN_S:
                return link, answer
            link.close()
        time.sleep(AGAIN_S)


def _receive_others(
    store: Store, name: str, address: str, size: int, deadline_s: float, timeout_s: float
) -> dict[int, Link]:
    word = secrets.token_hex(16)
    with socket.create_server((address, 0), family=_family(address), backlog=size) as server:
        store.set(KEY, json.dumps([address, server.getsockname()[1], word]))
        links = _accept(server, word, size, deadline_s)
    missing = ", ".join(str(rank) for rank in range(1, size) if rank not in links)
    if missing:
        error = _not_complete(name, size, f"rank {missing} did not come", timeout_s)
        for link in links.values():
            link.send({"broken": str(error)})
            link.close()
        raise error
    for link in links.values():
        link.send({"complete": True})
    return links


def _accept(server: socket.socket, word: str, size: int, deadline_s: float) -> dict[int, Link]:
    """Return the links of the ranks that said the word before the deadline.

    Whoever is silent keeps nobody waiting. What had arrived by the deadline counts, even if this
    process was not given the time to look before it.
    """
    links = dict[int, Link]()
    with selectors.DefaultSelector() as selector:
        selector.register(server, selectors.EVENT_READ)
        while len(links) < size - 1:
            left_s = deadline_s - time.monotonic()
            ready = selector.select(max(left_s, 0))
            if not ready and left_s <= 0:
                break
            for key, _ in ready:
                if key.fileobj is server:
                    newcomer = Link(server.accept()[0])
                    selector.register(newcomer, selectors.EVENT_READ)
                    continue
                link = cast("Link", key.fileobj)
                selector.unregister(link)
                hello = _first(link, time.monotonic() + AGAIN_S)
                if hello.get("word") == word:
                    links[int(hello["rank"])] = link
                else:
                    link.close()  # a stranger
        for key in [*selector.get_map().values()]:
            if key.fileobj is not server:
                cast("Link", key.fileobj).close()
    return links


def _first(link: Link, deadline_s: float) -> Message:
    """Return the message that comes first; {}: none before the deadline, or the link is gone."""
    link.socket.settimeout(max(deadline_s - time.monotonic(), 0.001))
    try:
        messages = link.receive() or [{}]
    except ValueError:  # no JSON
        messages = [{}]
    link.socket.settimeout(None)
    link.early = messages[1:]
    return messages[0] if isinstance(messages[0], dict) else {}


def _family(address: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def _not_complete(name: str, size: int, what: str, timeout_s: float) -> EngineError:
    return EngineError(
        f"communicator {name!r} of {size} ranks: {what} within {timeout_s:g} s; look for that "
        "rank's own error, and start all ranks of the group with the same rendezvous"
    )
