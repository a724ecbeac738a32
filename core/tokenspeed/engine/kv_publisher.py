"""Publishes changes of the prefix cache on ZeroMQ, and those of the past to who missed them.

PUB: (topic, 8-byte big-endian number, batch). ROUTER: a request holds the first number wanted; the
answer is every batch from there that is still kept, then number -1 with an empty batch. The engine
thread only fills queues; ZeroMQ's own thread sends. A slow subscriber loses messages and sees the
gap in the numbers; a slow replay goes on in later turns. Neither makes a step wait.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import zmq

from tokenspeed.engine.kv_events import AllBlocksCleared, EventGroup, encode_batch, events_of
from tokenspeed.errors import ConfigError
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenspeed.engine.kv_events import Event
    from tokenspeed.scheduler import EventBatch

QUEUED_BATCHES = 4096
"""Batches queued for one subscriber before it loses some."""
KEPT_BATCHES = 10_000
KEPT_BYTES = 64 << 20
"""What is kept for replay: at most so many of the last batches, and so many bytes."""
REPLAYED_A_TURN = 64
"""Replayed batches a client and turn of the loop."""
REQUESTS_A_TURN = 256
"""Requests for replay taken in one turn: whoever floods them must not hold the steps up."""
MAX_PORT = 65535
END = (-1).to_bytes(8, "big", signed=True)
_NUMBER_BYTES = 8
_NOBLOCK = int(zmq.NOBLOCK)


@dataclass(frozen=True, slots=True, kw_only=True)
class KvEventSettings:
    """Where and how changes are published.

    Args:
        endpoint: ZeroMQ address that subscribers connect to, such as tcp://*:5557.
        replay_endpoint: address for replay; "": none.
        topic: first frame of every message.
        is_named: events as maps (see `kv_events.py`), and the topic in replays too.
        block_tokens: tokens of a block.
        groups: cache groups, in the scheduler's order.
    """

    endpoint: str
    replay_endpoint: str = ""
    topic: str = ""
    is_named: bool = True
    block_tokens: int
    groups: tuple[EventGroup, ...] = (EventGroup(),)


@dataclass(slots=True)
class _Kept:
    """The last batches, for replay."""

    batches: deque[tuple[int, bytes]] = field(default_factory=deque)
    num_bytes: int = 0

    def add(self, number: int, payload: bytes) -> None:
        self.batches.append((number, payload))
        self.num_bytes += len(payload)
        while len(self.batches) > KEPT_BATCHES or self.num_bytes > KEPT_BYTES:
            self.num_bytes -= len(self.batches.popleft()[1])

    def after(self, number: int) -> Iterator[tuple[int, bytes]]:
        """Yield batches from `number` on; numbers are consecutive."""
        first = self.batches[0][0] if self.batches else 0
        for index in range(max(0, number - first), len(self.batches)):
            yield self.batches[index]


def open_kv_publisher(settings: KvEventSettings | None) -> KvPublisher | None:
    """Bind the addresses of the settings; without settings nothing is published.

    Raises:
        ConfigError: an address cannot be bound.
    """
    return None if settings is None else KvPublisher(settings)


def check_addresses(endpoint: str, replay_endpoint: str) -> None:
    """Check that changes can be published there, by binding for a moment; "" is nowhere.

    Raises:
        ConfigError: an address cannot be bound, or there is one for replay only.
    """
    if replay_endpoint and not endpoint:
        raise ConfigError(
            f"kv_events_replay is {replay_endpoint!r} but kv_events is empty, both are needed; set "
            "kv_events, or drop kv_events_replay"
        )
    if endpoint:
        KvPublisher(
            KvEventSettings(endpoint=endpoint, replay_endpoint=replay_endpoint, block_tokens=0)
        ).close()


class KvPublisher:
    """Owns both sockets. Thread: the engine's only."""

    def __init__(self, settings: KvEventSettings) -> None:
        """Bind.

        Raises:
            ConfigError: an address cannot be bound.
        """
        self._settings = settings
        self._topic = settings.topic.encode()
        self._number = 0
        self._kept = _Kept()
        self._replays: dict[bytes, int] = {}
        self._context = zmq.Context()
        self._sockets: list[zmq.Socket[bytes]] = []
        self._pub = self._bind("kv_events", zmq.PUB, settings.endpoint)
        self.replay_socket: zmq.Socket[bytes] | None = None
        if settings.replay_endpoint:
            self.replay_socket = self._bind(
                "kv_events_replay", zmq.ROUTER, settings.replay_endpoint
            )
        # What an engine before this one had told is true no more.
        self._publish([AllBlocksCleared()])

    def publish(self, batch: EventBatch | None) -> None:
        """Publish what changed in the cache; None: nothing did."""
        if batch is not None:
            settings = self._settings
            events = events_of(
                batch, settings.block_tokens, settings.groups, is_named=settings.is_named
            )
            if events:
                self._publish(events)

    def turn(self) -> bool:
        """Answer requests for replay, a part of each; True: there is more to send."""
        if self.replay_socket is None:
            return False
        self._take_requests(self.replay_socket)
        for client in tuple(self._replays):
            self._replay(self.replay_socket, client)
        return bool(self._replays)

    def close(self) -> None:
        """Release the sockets; what is queued is dropped."""
        for socket in self._sockets:
            socket.close(linger=0)
        self._context.term()

    def _bind(self, setting: str, kind: int, address: str) -> zmq.Socket[bytes]:
        flag = f"--{setting.replace('_', '-')}"
        port = address.rpartition(":")[2]
        if address.startswith("tcp:") and port.isdecimal() and int(port) > MAX_PORT:
            self.close()
            raise ConfigError(  # ZeroMQ would take the port modulo 65536
                f"{flag} is {address!r}, ports are 0 to {MAX_PORT}; give another"
            )
        socket = self._context.socket(kind)
        self._sockets.append(socket)
        socket.setsockopt(zmq.SNDHWM, QUEUED_BATCHES)
        if kind == zmq.ROUTER:
            socket.setsockopt(zmq.ROUTER_MANDATORY, 1)  # a full queue is told, not dropped
        try:
            socket.bind(address)
        except zmq.ZMQError as error:
            self.close()
            raise ConfigError(
                f"{flag} is {address!r}, which cannot be bound: {error}; "
                "give a free ZeroMQ address such as tcp://*:5557 or ipc:///path"
            ) from None
        return socket

    def _publish(self, events: list[Event]) -> None:
        payload = encode_batch(events, time_s=time.time(), is_named=self._settings.is_named)
        number = self._number.to_bytes(_NUMBER_BYTES, "big")
        self._pub.send_multipart((self._topic, number, payload), _NOBLOCK)  # PUB never blocks
        if self.replay_socket is not None:
            self._kept.add(self._number, payload)
        self._number += 1

    def _take_requests(self, socket: zmq.Socket[bytes]) -> None:
        for _ in range(REQUESTS_A_TURN):
            if not int(socket.getsockopt(zmq.EVENTS)) & zmq.POLLIN:
                return
            client, *frames = socket.recv_multipart(_NOBLOCK)
            if len(frames) != 2 or frames[0] or len(frames[1]) != _NUMBER_BYTES:
                LOGGER.warning("kv_events_replay: an unreadable request of %d frames", len(frames))
                continue
            self._replays[client] = int.from_bytes(frames[1], "big")

    def _replay(self, socket: zmq.Socket[bytes], client: bytes) -> None:
        """Send the next batches; stop where the client's queue is full."""
        head = (client, b"", self._topic) if self._settings.is_named else (client, b"")
        num_sent = 0
        try:
            for number, payload in self._kept.after(self._replays[client]):
                if num_sent == REPLAYED_A_TURN:
                    return
                frames = (*head, number.to_bytes(_NUMBER_BYTES, "big"), payload)
                socket.send_multipart(frames, _NOBLOCK)
                self._replays[client] = number + 1
                num_sent += 1
            end = (client, b"", b"") if self._settings.is_named else (client, b"")
            socket.send_multipart((*end, END, b""), _NOBLOCK)
            del self._replays[client]
        except zmq.Again:
            return
        except zmq.ZMQError:  # EHOSTUNREACH: the client is gone
            del self._replays[client]
