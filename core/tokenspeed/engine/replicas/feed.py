"""Tells the API processes' routers what this replica has cached, over the channel of its requests.

Each gets everything once, then what changes, numbered and in order. One that takes nothing for too
long is sent no more until it asks for everything again: what waits for it is bounded. There is one
only where there are several replicas.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.engine.messages import KvChanges
from tokenspeed.scheduler import PrefixView

if TYPE_CHECKING:
    from tokenspeed.engine.channel import Client, EngineChannel
    from tokenspeed.engine.messages import KvWatch, ModelInfo
    from tokenspeed.scheduler import EventBatch

MAX_UNTAKEN_BYTES = 8 << 20
"""Of changes on their way to an API process that has not said it took them."""


@dataclass(slots=True)
class _Watcher:
    """An API process that watches.

    Args:
        sent_bytes, taken_bytes: of changes since it was told everything.
        is_lost: it missed a change, and has to ask for everything.
    """

    sent_bytes: int = 0
    taken_bytes: int = 0
    is_lost: bool = False


class KvFeed:
    """Owns the engine's own view of its cache. Thread: the engine's only."""

    def __init__(self, channel: EngineChannel, info: ModelInfo, *, epoch: int) -> None:
        self.number = 0
        self._channel = channel
        self._epoch = epoch
        self._view = PrefixView(1, block_tokens=info.block_tokens, groups=list(info.cache_groups))
        self._watchers: dict[Client, _Watcher] = {}
        self._turns: list[tuple[int, int]] = []

    def note_turn(self, session: int, num_tokens: int) -> None:
        """Note that a request was taken, to be told with the next changes."""
        if session:
            self._turns.append((session, num_tokens))

    def publish(self, batch: EventBatch | None) -> None:
        """Tell all who watch what changed; None: nothing did in the cache."""
        if batch is None and not self._turns:
            return
        blocks = b"" if batch is None else batch.packed()
        self._view.apply(0, blocks)
        self.number += 1
        message = KvChanges(
            epoch=self._epoch, number=self.number, blocks=blocks, turns=tuple(self._turns)
        )
        self._turns.clear()
        for client, watcher in tuple(self._watchers.items()):
            self._send(client, watcher, message)

    def take(self, client: Client, asked: KvWatch) -> None:
        """Tell everything, or note how far a client is."""
        if asked.epoch != self._epoch:
            return
        if not asked.is_lost:
            if client in self._watchers:
                self._watchers[client].taken_bytes = asked.taken_bytes
            return
        self._watchers[client] = _Watcher()
        message = KvChanges(
            epoch=self._epoch, number=self.number, is_all=True, blocks=self._view.save(0)
        )
        self._deliver(client, message)

    def drop(self, client: Client) -> None:
        """Forget a client: it is gone."""
        self._watchers.pop(client, None)

    def _send(self, client: Client, watcher: _Watcher, message: KvChanges) -> None:
        if watcher.sent_bytes - watcher.taken_bytes > MAX_UNTAKEN_BYTES:
            watcher.is_lost = True
        if not watcher.is_lost:  # else it sees the gap, and asks
            watcher.sent_bytes += len(message.blocks)
            self._deliver(client, message)

    def _deliver(self, client: Client, message: KvChanges) -> None:
        if not self._channel.send(client, message):
            self.drop(client)
