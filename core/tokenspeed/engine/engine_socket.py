"""An API process's end of the connection to its engine: bytes out, messages in.

Knows no requests. Reads in the asyncio loop that made it, a bounded number of messages at a time;
that loop's thread only.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from tokenspeed.engine.messages import FromEngine
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.engine.messages import ToEngine

MAX_DRAINED = 32
"""Messages taken in one go: an engine that is faster than this process must not keep its loop from
seeing that clients went away."""


class EngineSocket:
    """A socket that outlives the engines behind it.

    Args:
        take: is given each message.
        misread: is told of one that cannot be read or taken.
        vanished: is told when the engine's end goes, behind its last message; None: nobody is.
    """

    def __init__(
        self,
        address: str,
        *,
        take: Callable[[FromEngine], None],
        misread: Callable[[Exception], None],
        vanished: Callable[[], None] | None = None,
    ) -> None:
        self.last_heard_s = time.monotonic()
        self.untaken_bytes = 0
        self._take = take
        self._misread = misread
        self._vanished = vanished
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(FromEngine)
        self._context = zmq.Context()
        self._socket = _dealer(self._context)
        self._loop = asyncio.get_running_loop()
        self._monitor: zmq.Socket[bytes] | None = None
        if vanished is not None:
            self._watch_connection()
        self._socket.connect(address)
        self._loop.add_reader(self._socket.fileno(), self._drain)

    def send(self, message: ToEngine) -> None:
        """Send a message; while no engine is there it waits for the next."""
        payload = self._encoder.encode(message)
        self.untaken_bytes += len(payload)
        self._socket.send(payload, zmq.NOBLOCK)
        # Sending may eat the edge that says a message has arrived: look for one.
        self._loop.call_soon(self._drain)

    def close(self) -> None:
        """Release the socket."""
        self._loop.remove_reader(self._socket.fileno())
        if self._monitor is not None:
            self._loop.remove_reader(self._monitor.fileno())
            self._socket.disable_monitor()
            self._monitor.close()
        self._socket.close()
        self._context.term()

    def _watch_connection(self) -> None:
        """Have the socket say when the engine's end goes: heartbeats would tell seconds later."""
        monitor: zmq.Socket[bytes] = self._socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)
        self._monitor = monitor
        self._loop.add_reader(monitor.fileno(), self._drain_monitor)
        self._loop.call_soon(self._drain_monitor)  # its descriptor tells of edges only

    def _drain_monitor(self) -> None:
        assert self._monitor is not None
        assert self._vanished is not None
        has_vanished = False
        while int(self._monitor.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
            event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
            has_vanished = has_vanished or event["event"] == zmq.EVENT_DISCONNECTED
        if has_vanished:
            self._drain()  # what it still said comes first
            self._vanished()

    def _drain(self) -> None:
        for _ in range(MAX_DRAINED):
            if self._socket.closed:
                return
            try:
                payload = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self.last_heard_s = time.monotonic()
            self.untaken_bytes = 0  # it turns, and takes what has come before it computes
            try:
                self._take(self._decoder.decode(payload))
            except Exception as error:  # nothing may leave a stream, or a start, waiting for ever
                LOGGER.debug("a message of the engine could not be taken", exc_info=error)
                self._misread(error)
        self._loop.call_soon(self._drain)  # there may be more, and no edge will say so


def _dealer(context: zmq.Context[zmq.Socket[bytes]]) -> zmq.Socket[bytes]:
    """Open the socket; queued messages wait for a restarted engine to listen again."""
    socket = context.socket(zmq.DEALER)
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    socket.setsockopt(zmq.LINGER, 200)
    socket.setsockopt(zmq.RECONNECT_IVL, 20)
    return socket
