"""Changes of several prefix caches as changes of one: what is cached in any of them is cached.

A block may be in the caches of several partitions. Whoever is outside cannot choose among them, so
it hears of the first that has a block, and of the last that had it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenspeed._core import KV_EVENTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tokenspeed._core import EventBatch

_STORED = KV_EVENTS.index("stored")


@dataclass(frozen=True, slots=True)
class JoinedEvents:
    """Entries of an EventBatch that were kept; the fields are its own."""

    kinds: NDArray[np.uint8]
    mediums: NDArray[np.uint8]
    groups: NDArray[np.int32]
    hashes: NDArray[np.uint8]
    parents: NDArray[np.uint8]
    namespaces: NDArray[np.int32]
    token_start: NDArray[np.int32]
    tokens: NDArray[np.int32]
    salts: list[bytes]


class EventUnion:
    """Knows which caches have each block. Thread: the engine's only."""

    def __init__(self) -> None:
        self._holders: dict[tuple[int, bytes], int] = {}  # a bit for each partition

    def joined(self, batches: Sequence[tuple[int, EventBatch]]) -> JoinedEvents | None:
        """Return what changed in the union; None: nothing did.

        Args:
            batches: (partition, its changes) in order.
        """
        kept = [(batch, self._kept(partition, batch)) for partition, batch in batches]
        kept = [(batch, entries) for batch, entries in kept if entries]
        return _join(kept) if kept else None

    def _kept(self, partition: int, batch: EventBatch) -> list[int]:
        """Return the entries that change what is cached anywhere."""
        kept = []
        kinds, groups = batch.kinds.tolist(), batch.groups.tolist()
        for entry, (kind, group) in enumerate(zip(kinds, groups, strict=True)):
            block = group, batch.hashes[entry].tobytes()
            before = self._holders.pop(block, 0)
            after = before | 1 << partition if kind == _STORED else before & ~(1 << partition)
            if after:
                self._holders[block] = after
            if bool(before) != bool(after):
                kept.append(entry)
        return kept


def _join(kept: Sequence[tuple[EventBatch, list[int]]]) -> JoinedEvents:
    salts: list[bytes] = []
    namespaces, tokens = [], [np.zeros(0, dtype=np.int32)]
    for batch, entries in kept:
        own = batch.namespaces[entries]
        namespaces.append(np.where(own < 0, own, own + len(salts)).astype(np.int32))
        salts += batch.salts
        starts = batch.token_start
        tokens += [batch.tokens[starts[entry] : starts[entry + 1]] for entry in entries]
    lengths = [0, *(len(part) for part in tokens[1:])]

    def columns(name: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(batch, name)[entries] for batch, entries in kept])

    return JoinedEvents(
        **{name: columns(name) for name in ("kinds", "mediums", "groups", "hashes", "parents")},  # type: ignore[arg-type]
        namespaces=np.concatenate(namespaces),
        token_start=np.cumsum(lengths, dtype=np.int32),
        tokens=np.concatenate(tokens),
        salts=salts,
    )
