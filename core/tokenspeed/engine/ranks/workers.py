"""The workers as rank 0 sees them: started on this host, or connected from wherever they are."""

from __future__ import annotations

import contextlib
import hmac
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TYPE_CHECKING

from tokenspeed.engine.endings import ending_of
from tokenspeed.engine.ranks.messages import RankHello
from tokenspeed.engine.ranks.wire import FrameReader
from tokenspeed.errors import EngineError
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenspeed.engine.ranks.messages import RankLoaded, RankMoves, RankReady
    from tokenspeed.placement.expert_load import ExpertLoad

HELLO_S = 10.0
"""Longest that a connection may take to say who it is."""
_DEATH_S = 0.5
_ACCEPT_S = 0.2


@dataclass(slots=True)
class Worker:
    """One further rank.

    Args:
        process: None where somebody else has started it.
        has_failed: it has said why it ends.
        well: steps that it said went well, by message.
        experts: load of its stage's, as it said last.
        loaded: what it has room for.
        moves: what it said of moves between tiers and rank 0 has not taken yet; any thread.
        heard_s: when it last said something, on the monotonic clock.
    """

    rank: int
    sock: socket.socket
    reader: FrameReader
    process: subprocess.Popen[bytes] | None = None
    hello: RankHello | None = None
    is_joining: bool = False
    loaded: RankLoaded | None = None
    ready: RankReady | None = None
    has_failed: bool = False
    steps: int = 0
    calls: int = 0
    well: int = 0
    experts: ExpertLoad | None = None
    moves: SimpleQueue[RankMoves] = field(default_factory=SimpleQueue)
    heard_s: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        """Return how logs and errors call it."""
        assert self.hello is not None, "a worker without a name is not used"
        return f"rank {self.rank} (pid {self.hello.pid} on {self.hello.host})"

    def end_text(self) -> str:
        """Return how it ended, once its socket has."""
        if self.process is None:
            return "its connection ended"
        try:
            code = self.process.wait(_DEATH_S)
        except subprocess.TimeoutExpired:
            return "it closed its control socket"
        return f"it {ending_of(code)}"

    def kill(self) -> None:
        """End it: by a signal, or, elsewhere, by the end of its connection."""
        if self.process is not None:
            self.process.kill()
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of it."""
        if self.process is not None:
            self.process.wait()
        self.sock.close()


def spawn_workers(world: int, ring_descriptor: int) -> list[Worker]:
    """Start one worker process a rank from 1 on; they die with the calling thread."""
    return [_spawn(rank, ring_descriptor) for rank in range(1, world)]


def _spawn(rank: int, ring_descriptor: int) -> Worker:
    ours, theirs = socket.socketpair()
    command = [
        sys.executable, "-P", "-m", "tokenspeed.engine.ranks.process", "--rank", str(rank),
        "--parent", str(os.getpid()), "--socket", str(theirs.fileno()),
        "--ring", str(ring_descriptor),
    ]  # fmt: skip
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(), ring_descriptor),
            start_new_session=True,  # a terminal's Ctrl-C is for the launcher alone
        )
    finally:
        theirs.close()
    hello = RankHello(rank=rank, pid=process.pid, host=socket.gethostname())
    return Worker(rank, ours, FrameReader(ours), process, hello)


def accept_workers(
    listener: socket.socket, world: int, token: str, check: Callable[[], None]
) -> list[Worker]:
    """Wait until every rank from 1 on has connected and said who it is.

    Args:
        check: called while waiting; raises to end it.
    """
    listener.settimeout(_ACCEPT_S)
    found: dict[int, Worker] = {}
    unnamed: list[Worker] = []
    while len(found) < world - 1:
        check()
        with contextlib.suppress(TimeoutError):
            sock, _ = listener.accept()
            sock.settimeout(None)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            unnamed.append(Worker(0, sock, FrameReader(sock)))
        unnamed = [worker for worker in unnamed if not _is_named(worker, found, world, token)]
    for worker in unnamed:
        worker.close()
    return [found[rank] for rank in sorted(found)]


def _is_named(worker: Worker, found: dict[int, Worker], world: int, token: str) -> bool:
    """Sort in a connection that has said who it is, or drop it; False: it has not yet."""
    try:
        messages: Sequence[object] = worker.reader.take()
    except ValueError as error:
        messages = [error]
    if not messages:
        if worker.reader.is_over or time.monotonic() > worker.heard_s + HELLO_S:
            worker.close()
            return True
        return False
    hello = messages[0]
    if not isinstance(hello, RankHello) or not hmac.compare_digest(hello.token, token):
        LOGGER.warning("a connection that is no rank of this server was closed")
        worker.close()
    elif not 1 <= hello.rank < world or hello.rank in found:
        LOGGER.warning(
            "a connection says it is rank %d, which is %s; closed",
            hello.rank,
            "there already" if hello.rank in found else f"none of 1 to {world - 1}",
        )
        worker.close()
    else:
        worker.rank, worker.hello = hello.rank, hello
        found[hello.rank] = worker
    return True


def difference(name: str, ours: dict[str, str], theirs: dict[str, str]) -> EngineError | None:
    """Return an error that names the first fact in which a worker differs from rank 0.

    What only one of them has is no difference: stages of a pipeline have layers of their own.
    """
    for fact in sorted(ours.keys() & theirs.keys()):
        if ours[fact] != theirs[fact]:
            return EngineError(
                f"{name} has {fact} {theirs[fact]}, rank 0 has {ours[fact]}: all ranks "
                "of a replica must be built alike; give their hosts the same files, plugins and "
                "devices, then start again"
            )
    return None
