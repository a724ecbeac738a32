"""KV store slot: keeps cache blocks behind the host tier, by content.

A store sees bytes, not tensors: one record is one logical block of one cache group. Calls return at
once; files and networks are worked on by the store's own threads, and what they finished is polled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

KEY_BYTES = 16
"""Length of a key: the hash of everything up to the block's last token, and of its cache group."""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """What a store promises.

    Args:
        durable: records are found again by the next start.
        capacity_bytes: most bytes of all records; the store drops what was used longest ago.
    """

    durable: bool
    capacity_bytes: int


@dataclass(frozen=True, slots=True)
class StoreDone:
    """One finished call.

    Args:
        ticket: what `put` or `get` returned.
        ok: a put is kept, or a get filled its buffer with exactly the bytes that were put.
    """

    ticket: int
    ok: bool


class KVStore(Protocol):
    """Required: everything here. One instance serves one namespace; called by one thread.

    Offer: slot "kv_store"; `load(namespace=..., folder=..., capacity_bytes=...)`. `namespace` is a
    file-name-safe text that differs between caches whose bytes cannot be exchanged (model, dtype,
    geometry, hash seed). `folder` is where a store on disk keeps its files.
    Failure is an ordinary answer: a record that is missing, damaged, refused or late is not `ok`,
    and no call raises for it.
    """

    facts: StoreFacts

    def put(self, key: bytes, tag: bytes, data: memoryview) -> int:
        """Start to keep a record; an earlier one of this key is replaced.

        Args:
            key: KEY_BYTES bytes.
            tag: what `get` must present: the token ids, so that equal keys of different content
                are told apart.
            data: unchanged until the call is reported by `poll`.
        Returns:
            A ticket that no other call of this store has.
        """
        ...

    def get(self, key: bytes, tag: bytes, into: memoryview) -> int:
        """Start to read a record; ok only if tag and length are equal and the checksum holds.

        Args:
            into: written by the store until the call is reported by `poll`; undefined if not ok.
        """
        ...

    def poll(self) -> Sequence[StoreDone]:
        """Return the calls that finished since the last poll; never blocks."""
        ...

    def keys(self) -> Sequence[bytes]:
        """Return the keys of all records, as found at the start and changed since."""
        ...

    def take_lost(self) -> Sequence[bytes]:
        """Return keys whose records were dropped or found damaged since the last call."""
        ...

    def close(self) -> None:
        """Finish the calls under way and give everything back."""
        ...
