"""A KV store as the engine uses it, and with everything that may befall its records."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

from tokenspeed_sdk import KEY_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tokenspeed_sdk import KVStore

RECORD_BYTES = 4096
PATIENCE_S = 10.0
TAG = b"tag of the record"


def key_of(number: int) -> bytes:
    """Return the key of a numbered record."""
    return number.to_bytes(KEY_BYTES, "little")


def bytes_of(number: int) -> bytes:
    """Return what a numbered record holds."""
    return random.Random(number).randbytes(RECORD_BYTES)


def wait_for(store: KVStore, tickets: set[int]) -> dict[int, bool]:
    """Poll until every ticket is reported; each must be, once.

    Raises:
        AssertionError: one is not reported in time, or another one is.
    """
    done: dict[int, bool] = {}
    deadline = time.monotonic() + PATIENCE_S
    while set(done) != tickets:
        for item in store.poll():
            assert item.ticket in tickets, f"ticket {item.ticket} is reported, nobody has it"
            assert item.ticket not in done, f"ticket {item.ticket} is reported twice"
            done[item.ticket] = item.ok
        assert time.monotonic() < deadline, f"no report of {tickets - set(done)} in {PATIENCE_S} s"
        time.sleep(0.001)
    return done


def put(store: KVStore, number: int) -> bool:
    """Keep a record and wait."""
    ticket = store.put(key_of(number), TAG, memoryview(bytes_of(number)))
    return wait_for(store, {ticket})[ticket]


def get(store: KVStore, number: int, *, tag: bytes = TAG, size: int = RECORD_BYTES) -> bytes | None:
    """Read a record and wait; None if it is not ok."""
    into = bytearray(size)
    ticket = store.get(key_of(number), tag, memoryview(into))
    return bytes(into) if wait_for(store, {ticket})[ticket] else None


def check_round_trip(store: KVStore) -> None:
    """What is kept comes back exactly, under its key, tag and length alone."""
    assert get(store, 1) is None, "a record that was never put is read"
    assert put(store, 1), "a first record is refused"
    assert get(store, 1) == bytes_of(1), "a record comes back with other bytes"
    assert get(store, 1, tag=b"another tag") is None, "a record is read with another tag"
    assert get(store, 1, size=RECORD_BYTES - 1) is None, "a record is read into a shorter buffer"
    assert get(store, 2) is None, "a record is read under another key"


def check_replacement(store: KVStore) -> None:
    """A second put of a key replaces the first."""
    assert put(store, 3)
    ticket = store.put(key_of(3), TAG, memoryview(bytes_of(4)))
    assert wait_for(store, {ticket})[ticket], "a second record of a key is refused"
    assert get(store, 3) == bytes_of(4), "the first record of a key is read after the second"


def check_many_at_once(store: KVStore) -> None:
    """Calls overlap; each is reported once, and what is ok is right."""
    buffers = [bytes_of(number) for number in range(32)]
    tickets = [
        store.put(key_of(number), TAG, memoryview(data)) for number, data in enumerate(buffers)
    ]
    assert len(set(tickets)) == len(tickets), "two calls have one ticket"
    kept = wait_for(store, set(tickets))
    into = [bytearray(RECORD_BYTES) for _ in buffers]
    reads = [store.get(key_of(number), TAG, memoryview(data)) for number, data in enumerate(into)]
    read = wait_for(store, set(reads))
    for number, (ticket, reading) in enumerate(zip(tickets, reads, strict=True)):
        assert read[reading] == kept[ticket], f"record {number}: kept {kept[ticket]}"
        assert not read[reading] or bytes(into[number]) == buffers[number], f"record {number}"


def check_bound(store: KVStore) -> None:
    """More than fits is put; what is still there is right, and the newest is."""
    count = 2 * store.facts.capacity_bytes // RECORD_BYTES
    for number in range(count):
        put(store, number)
    there = [number for number in range(count) if (data := get(store, number)) is not None
             and data == bytes_of(number)]  # fmt: skip
    held = len(there) * RECORD_BYTES
    assert held <= store.facts.capacity_bytes, f"{held} bytes are kept, more than it may"
    assert count - 1 in there, "the newest record was dropped"


def check_damage(make: Callable[[], KVStore], folder: Path) -> None:
    """Flip a byte in, then cut, every file: a record is read exactly or not at all.

    Args:
        make: opens the store on `folder`; called again after each damage.
    """
    for damage in (_flip, _cut):
        store = make()
        for number in range(4):
            put(store, number)
        store.close()
        files = [path for path in folder.rglob("*") if path.is_file() and path.stat().st_size]
        for path in files:
            damage(path)
        store = make()
        for number in range(4):
            data = get(store, number)
            right = data is None or data == bytes_of(number)
            assert right, f"after {damage.__name__} a damaged record is given out as whole"
        assert put(store, 9), f"after {damage.__name__} nothing can be kept any more"
        assert get(store, 9) == bytes_of(9)
        store.close()


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0x10
    path.write_bytes(data)


def _cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
