"""Changes of the prefix cache in the shape that vLLM's KV-event consumers read.

A batch is an array; an event is a map tagged by "type" ("named", as vLLM writes since 0.24) or an
array that starts with its tag ("positional", as before). Blocks are named by the low 64 bits of
their chain hash, as an unsigned number. Only full blocks are told: consumers count in blocks.
Each cache group tells of its own blocks, under its `group_idx`; readers of the positional shape
know no groups and hear of the first full-attention group only. A recurrent state is told where it
lies at the end of a block.
Source: vllm/distributed/kv_events.py, vllm-project/vllm#42892 (maps); the field order is theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tokenspeed.scheduler import KV_EVENTS, KV_MEDIUMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tokenspeed.scheduler import EventBatch

MEDIUMS = {"device": "GPU", "host": "CPU", "store": "STORAGE"}
"""Our media -> the names that consumers know."""
SPEC_KINDS = {"full": "full_attention", "window": "sliding_window", "state": "mamba"}
"""Our kinds of cache groups -> the names that consumers know."""
TENANT_MARK = b"\xff"
"""First byte of the namespaces of a tenant that has a name; its number follows, then the salt."""
TENANT_BYTES = 8


@dataclass(frozen=True, slots=True)
class EventGroup:
    """A cache group as consumers know it.

    Args:
        kind: full, window or state.
        window: tokens, 0 for the other kinds.
    """

    kind: str = "full"
    window: int = 0


class BlockStored(msgspec.Struct, frozen=True, tag=True, kw_only=True, omit_defaults=True):
    """Consecutive blocks of one prefix can be reused now.

    Args:
        block_hashes: one a block; each hash covers all tokens before it.
        parent_block_hash: of the block before the first; None: it begins the prompt.
        token_ids: of all blocks, `block_size` each.
        extra_keys: one a block: the salt of the first block of a salted prompt, else None.
        group_idx: cache group whose blocks these are.
        kv_cache_spec_kind: what keeps them, see SPEC_KINDS.
        kv_cache_spec_sliding_window: tokens, of a window group.
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
    kv_cache_spec_sliding_window: int | None = None


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


def events_of(
    batch: EventBatch, block_tokens: int, groups: Sequence[EventGroup], *, is_named: bool = True
) -> list[Event]:
    """Translate what the scheduler drained; neighbours in a chain become one event.

    Args:
        groups: the scheduler's cache groups, in its order.
        is_named: False: of the first full group only.
    """
    return [
        _event(run, batch, block_tokens, groups)
        for entries in _by_group(batch, groups, is_named=is_named)
        for run in _runs(entries, batch, block_tokens)
    ]


def _by_group(
    batch: EventBatch, groups: Sequence[EventGroup], *, is_named: bool
) -> list[list[int]]:
    """Return the entries of each group in order: what befalls one group leaves the others alone."""
    if len(groups) == 1:
        return [list(range(len(batch.kinds)))]
    first = next(index for index, group in enumerate(groups) if group.kind == "full")
    told = range(len(groups)) if is_named else (first,)
    return [np.flatnonzero(batch.groups == group).tolist() for group in told]


def _event(
    run: list[int], batch: EventBatch, block_tokens: int, groups: Sequence[EventGroup]
) -> Event:
    first = run[0]
    kind = KV_EVENTS[batch.kinds[first]]
    if kind == "cleared":
        return AllBlocksCleared()
    medium = MEDIUMS[KV_MEDIUMS[batch.mediums[first]]]
    hashes = tuple(_short(batch.hashes[run]).tolist())
    index = int(batch.groups[first])
    if kind == "removed":
        return BlockRemoved(block_hashes=hashes, medium=medium, group_idx=index)
    is_first = not batch.parents[first].any()
    salt = _salt(batch, first) if is_first else ""
    return BlockStored(
        block_hashes=hashes,
        parent_block_hash=None if is_first else int(_short(batch.parents[first : first + 1])[0]),
        token_ids=[token for entry in run for token in _tokens(batch, entry)],
        block_size=block_tokens,
        lora_id=None,
        medium=medium,
        lora_name=None,
        extra_keys=((salt,) if salt else None, *(None for _ in hashes[1:])),
        group_idx=index,
        kv_cache_spec_kind=SPEC_KINDS[groups[index].kind],
        kv_cache_spec_sliding_window=groups[index].window or None,
    )


def _tokens(batch: EventBatch, entry: int) -> list[int]:
    tokens: list[int] = batch.tokens[
        batch.token_start[entry] : batch.token_start[entry + 1]
    ].tolist()
    return tokens


def _runs(entries: list[int], batch: EventBatch, block_tokens: int) -> Iterator[list[int]]:
    """Cut a group's entries into runs that make one event each; stored tails are left out."""
    lengths = np.diff(batch.token_start)
    run: list[int] = []
    for entry in entries:
        if KV_EVENTS[batch.kinds[entry]] == "stored" and lengths[entry] != block_tokens:
            continue
        if run and not _continues(batch, run[-1], entry):
            yield run
            run = []
        run.append(entry)
    if run:
        yield run


def _continues(batch: EventBatch, before: int, entry: int) -> bool:
    """Say whether an entry belongs into the event of the one before it."""
    if batch.kinds[entry] != batch.kinds[before] or batch.mediums[entry] != batch.mediums[before]:
        return False
    kind = KV_EVENTS[batch.kinds[entry]]
    if kind == "removed":
        return True
    return bool(kind == "stored" and (batch.parents[entry] == batch.hashes[before]).all())


def _short(hashes: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the low 64 bits of (E, 16) hashes."""
    return np.ascontiguousarray(hashes[:, :8]).view("<u8").reshape(-1)


def _salt(batch: EventBatch, index: int) -> str:
    """Return the namespace of a block that begins a prompt: its salt, of a tenant TENANT/SALT.

    The tenant is its number in hexadecimal (`requests.number_of`).
    """
    name_space = int(batch.namespaces[index])
    if name_space < 0:
        return ""
    name = batch.salts[name_space]
    if not name.startswith(TENANT_MARK):
        return name.decode(errors="replace")
    start = len(TENANT_MARK)
    tenant = int.from_bytes(name[start : start + TENANT_BYTES], "little")
    return f"{tenant:016x}/{name[start + TENANT_BYTES :].decode(errors='replace')}"
