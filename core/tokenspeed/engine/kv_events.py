"""Changes of the prefix cache in the shape that vLLM's KV-event consumers read.

A batch is an array; an event is a map tagged by "type" ("named", as vLLM writes since 0.24) or an
array that starts with its tag ("positional", as before). Blocks are named by the low 64 bits of
their chain hash, as an unsigned number. Only full blocks are told: consumers count in blocks.
Source: vllm/distributed/kv_events.py, vllm-project/vllm#42892 (maps); the field order is theirs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tokenspeed.scheduler import KV_EVENTS, KV_MEDIUMS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tokenspeed.scheduler import EventBatch

MEDIUMS = {"device": "GPU", "host": "CPU", "store": "STORAGE"}
"""Our media -> the names that consumers know."""
_FULL_ATTENTION = "full_attention"


class BlockStored(msgspec.Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Consecutive blocks of one prefix can be reused now.

    Args:
        block_hashes: one a block; each hash covers all tokens before it.
        parent_block_hash: of the block before the first; None: it begins the prompt.
        token_ids: of all blocks, `block_size` each.
        extra_keys: one a block: the salt of the first block of a salted prompt, else None.
    """

    block_hashes: tuple[int, ...]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: None
    medium: str | None
    lora_name: None
    extra_keys: tuple[tuple[str, ...] | None, ...]
    group_idx: int = -1
    kv_cache_spec_kind: str = ""


class BlockRemoved(msgspec.Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Blocks can be reused no more."""

    block_hashes: tuple[int, ...]
    medium: str | None
    group_idx: int = -1


class AllBlocksCleared(msgspec.Struct, frozen=True, tag=True):
    """Nothing can be reused any more: the cache is empty."""


Event = BlockStored | BlockRemoved | AllBlocksCleared


def encode_batch(events: list[Event], *, time_s: float, is_named: bool) -> bytes:
    """Return a batch as msgpack.

    Args:
        time_s: Unix time.
        is_named: events as maps; else as arrays.
    """
    shown = events if is_named else [_positional(event) for event in events]
    return msgspec.msgpack.encode((time_s, shown, 0))


def _positional(event: Event) -> tuple[Any, ...]:
    return (type(event).__name__, *msgspec.structs.astuple(event))


def events_of(batch: EventBatch, block_tokens: int) -> list[Event]:
    """Translate what the scheduler drained; neighbours in a chain become one event."""
    return [_event(run, batch, block_tokens) for run in _runs(batch, block_tokens)]


def _event(run: range, batch: EventBatch, block_tokens: int) -> Event:
    kind = KV_EVENTS[batch.kinds[run.start]]
    if kind == "cleared":
        return AllBlocksCleared()
    medium = MEDIUMS[KV_MEDIUMS[batch.mediums[run.start]]]
    hashes = tuple(_short(batch.hashes)[run.start : run.stop].tolist())
    if kind == "removed":
        return BlockRemoved(block_hashes=hashes, medium=medium, group_idx=0)
    start, stop = batch.token_start[run.start], batch.token_start[run.stop]
    is_first = not batch.parents[run.start].any()
    salt = _salt(batch, run.start) if is_first else None
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=None if is_first else int(_short(batch.parents)[run.start]),
        token_ids=batch.tokens[start:stop].tolist(),
        block_size=block_tokens,
        lora_id=None,
        medium=medium,
        lora_name=None,
        extra_keys=((salt,) if salt else None, *(None for _ in hashes[1:])),
        group_idx=0,
        kv_cache_spec_kind=_FULL_ATTENTION,
    )


def _runs(batch: EventBatch, block_tokens: int) -> Iterator[range]:
    """Cut the entries into runs that make one event each; stored tails are left out."""
    lengths = np.diff(batch.token_start)
    start = 0
    while start < len(batch.kinds):
        stop = start + 1
        if KV_EVENTS[batch.kinds[start]] == "stored" and lengths[start] != block_tokens:
            start = stop
            continue
        while stop < len(batch.kinds) and _continues(batch, stop, lengths):
            stop += 1
        yield range(start, stop)
        start = stop


def _continues(batch: EventBatch, index: int, lengths: NDArray[np.int32]) -> bool:
    """Say whether an entry belongs into the event of the one before it."""
    before = index - 1
    if batch.kinds[index] != batch.kinds[before] or batch.mediums[index] != batch.mediums[before]:
        return False
    kind = KV_EVENTS[batch.kinds[index]]
    if kind == "removed":
        return True
    return bool(
        kind == "stored"
        and lengths[index] == lengths[before]
        and (batch.parents[index] == batch.hashes[before]).all()
    )


def _short(hashes: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the low 64 bits of (E, 16) hashes."""
    return np.ascontiguousarray(hashes[:, :8]).view("<u8").reshape(-1)


def _salt(batch: EventBatch, index: int) -> str:
    name_space = int(batch.namespaces[index])
    return batch.salts[name_space].decode(errors="replace") if name_space >= 0 else ""
