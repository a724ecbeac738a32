"""A subscriber to KV events, written from the public shape as routers write theirs."""

from __future__ import annotations

from typing import Any

import msgspec
import zmq


class Batch(msgspec.Struct, array_like=True):
    """What surrounds the events."""

    ts: float
    events: list[Any]
    data_parallel_rank: int | None = None


class Event(msgspec.Struct, tag=True):
    """Events as maps; a consumer declares what it reads and ignores the rest."""


class BlockStored(Event):
    block_hashes: list[int | bytes]
    parent_block_hash: int | bytes | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: list[tuple[Any, ...] | None] | None = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None


class BlockRemoved(Event):
    block_hashes: list[int | bytes]
    medium: str | None
    group_idx: int | None = None


class AllBlocksCleared(Event):
    pass


class NamedBatch(Batch):
    events: list[BlockStored | BlockRemoved | AllBlocksCleared]


class OldEvent(msgspec.Struct, array_like=True, tag=True):
    """Events as arrays, as consumers before 2026 read them; later fields are ignored."""


class OldStored(OldEvent, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None


class OldRemoved(OldEvent, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None


class OldCleared(OldEvent, tag="AllBlocksCleared"):
    pass


class PositionalBatch(Batch):
    events: list[OldStored | OldRemoved | OldCleared]


class Consumer:
    """Subscribes, notices gaps in the numbers and fills them by replay; keeps a cache index.

    Args:
        high_water: messages that this end holds unread.
    """

    def __init__(
        self,
        endpoint: str,
        replay: str = "",
        *,
        topic: str = "",
        batch: type[Batch] = NamedBatch,
        high_water: int = 100_000,
    ) -> None:
        self.last = -1
        self.gaps = 0
        self.events: list[Any] = []
        self._decoder = msgspec.msgpack.Decoder(batch)
        self._has_topic = batch is NamedBatch
        self._context = zmq.Context()
        self.sub = self._socket(zmq.SUB, high_water)
        self.sub.connect(endpoint)
        self.sub.setsockopt(zmq.SUBSCRIBE, topic.encode())
        self.replay = self._socket(zmq.DEALER, high_water)
        if replay:
            self.replay.connect(replay)

    def receive(self, *, timeout_ms: int = 60_000) -> bool:
        """Take one message and what is missing before it; False: none came."""
        if not self.sub.poll(timeout_ms):
            return False
        _, number, payload = self.sub.recv_multipart()
        self._take(int.from_bytes(number, "big"), payload)
        return True

    def catch_up(self, first: int = 0) -> int:
        """Ask for every batch from `first` on; return how many came before the end marker."""
        self.replay.send_multipart((b"", first.to_bytes(8, "big")))
        count = 0
        while True:
            assert self.replay.poll(60_000), "the end marker is missing"
            _, *topic, number, payload = self.replay.recv_multipart()
            assert len(topic) == self._has_topic
            if int.from_bytes(number, "big", signed=True) == -1:
                assert payload == b""
                return count
            count += 1
            if int.from_bytes(number, "big") > self.last:
                self._note(int.from_bytes(number, "big"), payload)

    def stored(self, medium: str = "GPU", group: int = 0) -> set[int | bytes]:
        """Return the hashes that can be reused now in a tier, by the events seen."""
        held: set[int | bytes] = set()
        for event in self.events:
            if getattr(event, "medium", medium) != medium:
                continue
            if getattr(event, "group_idx", group) != group:
                continue
            if isinstance(event, BlockStored | OldStored):
                held |= set(event.block_hashes)
            elif isinstance(event, BlockRemoved | OldRemoved):
                held -= set(event.block_hashes)
            else:
                held.clear()
        return held

    def close(self) -> None:
        """Release the sockets."""
        for socket in (self.sub, self.replay):
            socket.close(linger=0)
        self._context.term()

    def _take(self, number: int, payload: bytes) -> None:
        if number > self.last + 1:
            self.gaps += 1
            self.catch_up(self.last + 1)
        if number > self.last:
            self._note(number, payload)

    def _note(self, number: int, payload: bytes) -> None:
        self.last = number
        self.events += self._decoder.decode(payload).events

    def _socket(self, kind: int, high_water: int) -> zmq.Socket[bytes]:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.RCVHWM, high_water)
        return socket
