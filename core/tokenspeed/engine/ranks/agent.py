"""Keeps one further rank at work: connects to rank 0's launcher, starts a worker, and again.

    connect --> settings come: worker process (has the socket) --> either ends --> connect ...

Runs in whatever process a launcher has started for the rank. It ends when nobody listens any more.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from tokenspeed.engine.ranks.messages import RankHello
from tokenspeed.engine.ranks.wire import encoded, send_frame
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.engine.ranks.source import RankAddress

CONNECT_S = 10.0
FIRST_CONNECT_S = 120.0
"""Rank 0's launcher may come much later than the others'."""
RETRY_S = 0.5
GRACE_S = 5.0
"""How long a worker may take to end by itself once rank 0 is gone."""
_POLL_MS = 200


def run_agent(
    address: RankAddress,
    rank: int,
    *,
    device_index: int = -1,
    is_stopping: Callable[[], bool] = lambda: False,
) -> int:
    """Serve rank 0's engines, one after another, until its launcher is gone.

    Args:
        device_index: see RankHello.
        is_stopping: asked a few times a second; the worker is ended when it says so.
    Returns:
        The number of workers started.
    """
    num_started, patience_s = 0, FIRST_CONNECT_S
    hello = RankHello(
        rank=rank,
        pid=os.getpid(),
        host=socket.gethostname(),
        token=address.token,
        device_index=device_index,
    )
    while (sock := _connected(address, patience_s, is_stopping)) is not None:
        patience_s = 0.0
        with sock:
            if _is_wanted(sock, hello, is_stopping):
                num_started += 1
                _serve(sock, rank, is_stopping)
    LOGGER.info("rank %d: rank 0 listens no more; %d workers ended", rank, num_started)
    return num_started


def _connected(
    address: RankAddress, patience_s: float, is_stopping: Callable[[], bool]
) -> socket.socket | None:
    """Return a connection; None: nobody listens, or no more."""
    give_up_s = time.monotonic() + patience_s
    while not is_stopping():
        try:
            sock = socket.create_connection((address.host, address.port), CONNECT_S)
        except OSError as error:
            if time.monotonic() > give_up_s:
                LOGGER.debug("nobody listens at %s:%d: %s", address.host, address.port, error)
                return None
            time.sleep(RETRY_S)
            continue
        sock.settimeout(None)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return sock
    return None


def _is_wanted(sock: socket.socket, hello: RankHello, is_stopping: Callable[[], bool]) -> bool:
    """Say who this is, and wait until an engine answers; False: it, or this process, ends."""
    poller = select.poll()
    poller.register(sock, select.POLLIN | select.POLLRDHUP)
    try:
        send_frame(sock, encoded(hello))
        while not is_stopping():
            if poller.poll(_POLL_MS):
                return bool(sock.recv(1, socket.MSG_PEEK))
    except OSError:
        pass
    return False


def _serve(sock: socket.socket, rank: int, is_stopping: Callable[[], bool]) -> None:
    """Start a worker on this connection, and see to it that it ends with it."""
    command = [
        sys.executable, "-P", "-m", "tokenspeed.engine.ranks.process", "--rank", str(rank),
        "--parent", str(os.getpid()), "--socket", str(sock.fileno()),
    ]  # fmt: skip
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, pass_fds=(sock.fileno(),), start_new_session=True
    )
    LOGGER.info("rank %d: worker is pid %d", rank, process.pid)
    try:
        _wait_end(sock, process, is_stopping)
    finally:
        process.kill()
        process.wait()


def _wait_end(
    sock: socket.socket, process: subprocess.Popen[bytes], is_stopping: Callable[[], bool]
) -> None:
    """Wait until the worker has ended, or must be ended: a stopped one ends by nothing else."""
    poller = select.poll()
    poller.register(sock, select.POLLRDHUP | select.POLLHUP)
    while process.poll() is None and not is_stopping():
        if poller.poll(_POLL_MS):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            return
