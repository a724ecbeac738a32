"""How messages cross between API processes and the engine: one ROUTER socket, msgpack frames.

`ServerChannel` is the engine's end and names each API process by its socket identity;
`LocalChannel` is the same end for a caller in the same process. Neither knows what a message means.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Protocol

import msgspec
import zmq

from tokenspeed.engine.messages import FromEngine, ToEngine, Unhealthy
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Sequence

Client = bytes
"""Identity of one API process on this channel."""

MAX_MESSAGES = 256
"""Messages taken in one go, so that a flood of submits cannot starve the running streams."""

LINGER_MS = 200
"""How long a closing socket may spend on sending what it holds."""

# Plain integers: arithmetic on enum flags costs 10 us a step.
_NOBLOCK = int(zmq.NOBLOCK)
_NOBLOCK_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_EVENTS = int(zmq.EVENTS)
_POLLIN = int(zmq.POLLIN)


class EngineChannel(Protocol):
    """The engine's end of a channel."""

    def receive(self, wait_ms: int) -> Sequence[tuple[Client, ToEngine]]:
        """Return what has arrived; wait up to `wait_ms` (-1: for ever) for the first message."""
        ...

    def send(self, client: Client, message: FromEngine) -> bool:
        """Send one message; False: the client is gone."""
        ...

    def close(self) -> None:
        """Flush briefly and release the socket."""
        ...


class ServerChannel:
    """The engine's end over ZeroMQ. Thread: the engine's only.

    A peer that closed its socket is reported at the next send to it (ROUTER_MANDATORY), so that
    the requests of a dead API process end at once. Queues are unbounded on purpose: a delta that
    is dropped is a stream with a hole.
    """

    def __init__(self, address: str) -> None:
        self._context = zmq.Context()
        self._socket = self._context.socket(zmq.ROUTER)
        self._socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket.setsockopt(zmq.SNDHWM, 0)
        self._socket.setsockopt(zmq.RCVHWM, 0)
        self._socket.setsockopt(zmq.LINGER, LINGER_MS)
        self._socket.bind(address)
        self._poller = zmq.Poller()
        self._poller.register(self._socket, zmq.POLLIN)
        self._decoder = msgspec.msgpack.Decoder(ToEngine)
        self._encoder = msgspec.msgpack.Encoder()

    def watch(self, socket: zmq.Socket[bytes]) -> None:
        """End the waiting of `receive` when another socket can be read, too."""
        self._poller.register(socket, zmq.POLLIN)

    def receive(self, wait_ms: int) -> Sequence[tuple[Client, ToEngine]]:
        """Return what has arrived; wait up to `wait_ms` (-1: for ever) for the first message."""
        if wait_ms != 0 and not self._poller.poll(wait_ms):
            return ()
        messages: list[tuple[Client, ToEngine]] = []
        while len(messages) < MAX_MESSAGES and self._has_message():
            client, *frames = self._socket.recv_multipart(_NOBLOCK)
            try:
                messages.append((client, self._decode(frames)))
            except (ValueError, OverflowError, RecursionError) as error:
                self._refuse(client, error)
        return messages

    def _decode(self, frames: Sequence[bytes]) -> ToEngine:
        if len(frames) != 1:
            raise ValueError(f"{len(frames)} frames instead of one")
        message: ToEngine = self._decoder.decode(frames[0])
        return message

    def _refuse(self, client: Client, error: Exception) -> None:
        """Tell a peer that it is not understood: what it waits for would never come."""
        LOGGER.warning("an unreadable message of %r: %s", client, error)
        reason = (
            f"the engine cannot read a message of this process: {error}; both must be of one "
            "version; restart the server"
        )
        self.send(client, Unhealthy(reason))

    def send(self, client: Client, message: FromEngine) -> bool:
        """Send one message; False: the client is gone."""
        try:
            self._socket.send(client, _NOBLOCK_MORE)
            self._socket.send(self._encoder.encode(message), _NOBLOCK)
        except zmq.ZMQError as error:
            if error.errno in (zmq.EHOSTUNREACH, zmq.EAGAIN):
                return False
            raise
        return True

    def close(self) -> None:
        """Flush briefly and release the socket."""
        self._socket.close()
        self._context.term()

    def _has_message(self) -> bool:
        # Asking first is cheaper than an exception, and most steps find nothing.
        return bool(int(self._socket.getsockopt(_EVENTS)) & _POLLIN)


LOCAL_CLIENT: Client = b"local"


class LocalChannel:
    """Both ends in one process: the caller puts into `inbox` and takes from `outbox`."""

    def __init__(self) -> None:
        self.inbox: deque[ToEngine] = deque()
        self.outbox: deque[FromEngine] = deque()

    def receive(self, wait_ms: int) -> Sequence[tuple[Client, ToEngine]]:
        """Return what the caller put in; else rest: other threads of the engine are at work."""
        if not self.inbox and wait_ms > 0:
            time.sleep(wait_ms / 1000)
        messages = tuple((LOCAL_CLIENT, message) for message in self.inbox)
        self.inbox.clear()
        return messages

    def send(self, client: Client, message: FromEngine) -> bool:
        """Hand one message to the caller."""
        self.outbox.append(message)
        return True

    def close(self) -> None:
        """Nothing to release."""
