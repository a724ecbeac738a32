"""Solves the arena's geometry: one physical block size that several cache groups share.

A physical block holds `packing` logical blocks of one group, at equal distances, so that the block
id `physical * packing + index` times `logical_bytes` is an address for every group:

    |<------------- physical_bytes ------------->|
    | group A: | block 0 | block 1 | block 2   | |   packing 3
    | group B: | block 0             |           |   packing 1, the rest is waste
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.errors import CapabilityError, CapacityError, ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenspeed.contracts.model import CacheGroup

ALIGN_BYTES = 64
MAX_PACKING = 64
MIN_BLOCK_TOKENS = 16
_GIB = 2**30


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """How one cache group lies in a physical block.

    Args:
        name: of the cache group.
        packing: logical blocks in a physical block.
        payload_bytes: bytes of one logical block that are used, all layers of the group.
        logical_bytes: distance between two logical blocks, >= payload_bytes.
    """

    name: str
    packing: int
    payload_bytes: int
    logical_bytes: int

    @property
    def waste(self) -> float:
        """Share of a physical block that this group leaves unused, in [0, 1)."""
        return 1.0 - self.payload_bytes / self.logical_bytes


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """The solved geometry; block_major: a block holds all its group's layers in one piece.

    Args:
        physical_bytes: bytes of a physical block, the same for all groups.
        num_physical_blocks: including block 0, the sentinel.
        block_tokens: tokens of a logical block.
        groups: one entry a cache group, in the order given.
        order: always "block_major".
    """

    physical_bytes: int
    num_physical_blocks: int
    block_tokens: int
    groups: tuple[GroupLayout, ...]
    order: str = "block_major"

    @property
    def total_bytes(self) -> int:
        """Bytes of the arena that are used, the sentinel included."""
        return self.physical_bytes * self.num_physical_blocks

    @property
    def bytes_per_token(self) -> float:
        """Bytes that one cached token takes over all groups, waste included."""
        return sum(group.logical_bytes for group in self.groups) / self.block_tokens

    @property
    def tokens_per_gib(self) -> int:
        """Tokens that a GiB of arena keeps."""
        return int(_GIB / self.bytes_per_token)

    def num_blocks(self, group_index: int) -> int:
        """Return how many logical block ids a group has, the sentinel's included."""
        return self.num_physical_blocks * self.groups[group_index].packing

    def describe(self) -> str:
        """Say in text what was solved and what it wastes."""
        head = (
            f"arena {self.total_bytes / _GIB:.1f} GiB, {self.num_physical_blocks:,} physical "
            f"blocks x {self.physical_bytes:,} bytes, {self.order}, "
            f"{self.tokens_per_gib:,} tokens/GiB"
        )
        lines = [
            f"  {group.name}: {group.packing} x {group.logical_bytes:,} bytes of "
            f"{self.block_tokens} tokens, waste {group.waste:.1%}"
            for group in self.groups
        ]
        return "\n".join([head, *lines])


def solve_layout(
    groups: Sequence[CacheGroup], *, block_tokens: int, dtype_bytes: int, arena_bytes: int
) -> ArenaLayout:
    """Choose the physical block size that loses least of the arena.

    What a size loses is its worst group's waste plus one physical block a group (partly filled) and
    the sentinel.

    Args:
        block_tokens: tokens of a logical block, a power of two >= 16.
        dtype_bytes: bytes of one cached element.
        arena_bytes: bytes to lay out.
    Raises:
        CapabilityError: a group is not of kind "full".
        CapacityError: the arena does not hold the sentinel and a block of every group.
        ConfigError: a size is out of range, or two groups share a layer or a name.
    """
    _check(groups, block_tokens, dtype_bytes)
    payloads = [_payload_bytes(group, block_tokens, dtype_bytes) for group in groups]
    limit = arena_bytes // (len(groups) + 1)
    fitting = [size for size in _candidates(payloads) if size[0] <= limit]
    if not fitting:
        needed = min(_candidates(payloads))[0] * (len(groups) + 1)
        raise CapacityError(
            f"KV arena of {arena_bytes:,} bytes is too small: {len(groups)} cache group(s) of "
            f"{', '.join(f'{size:,}' for size in payloads)} bytes a block of {block_tokens} tokens "
            f"need at least {needed:,} bytes; give the cache more memory or use smaller blocks"
        )
    physical_bytes, packings = min(fitting, key=lambda size: _lost(size, payloads, arena_bytes))
    return ArenaLayout(
        physical_bytes=physical_bytes,
        num_physical_blocks=arena_bytes // physical_bytes,
        block_tokens=block_tokens,
        groups=tuple(
            GroupLayout(group.name, packing, payload, physical_bytes // packing)
            for group, packing, payload in zip(groups, packings, payloads, strict=True)
        ),
    )


def _check(groups: Sequence[CacheGroup], block_tokens: int, dtype_bytes: int) -> None:
    if block_tokens < MIN_BLOCK_TOKENS or block_tokens & (block_tokens - 1):
        raise ConfigError(
            f"block_tokens is {block_tokens}, allowed are powers of two from {MIN_BLOCK_TOKENS}; "
            "choose one, such as 128"
        )
    if dtype_bytes not in (1, 2, 4, 8):
        raise ConfigError(
            f"KV element size is {dtype_bytes} bytes, allowed are 1, 2, 4, 8; choose another dtype"
        )
    if not groups:
        raise ConfigError(
            "the model declares no cache group, at least one is needed; fix the model"
        )
    for group in groups:
        if group.kind != "full":
            raise CapabilityError(
                f"cache group {group.name!r} is of kind {group.kind!r}, this version lays out "
                "'full' only; serve a model without sliding-window or state layers"
            )
    layers = [layer for group in groups for layer in group.layers]
    names = [group.name for group in groups]
    if sorted(layers) != list(range(len(layers))) or len(set(names)) != len(names):
        raise ConfigError(
            f"cache groups {names} hold the layers {sorted(layers)}; allowed is every layer from 0 "
            "once, under different group names; fix the model's cache_groups"
        )


def _payload_bytes(group: CacheGroup, block_tokens: int, dtype_bytes: int) -> int:
    elements = sum(math.prod(field.shape) for field in group.fields)
    return len(group.layers) * elements * block_tokens * dtype_bytes


def _candidates(payloads: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield (physical_bytes, packing of each group): multiples of each group's block, rounded up
    until every group's blocks lie at equal, aligned distances."""
    largest = max(payloads)
    for payload in sorted(set(payloads)):
        for count in range(-(-largest // payload), largest * MAX_PACKING // payload + 1):
            packings = tuple(count * payload // other for other in payloads)
            if min(count, *packings) > MAX_PACKING:
                break
            packings = tuple(min(packing, MAX_PACKING) for packing in packings)
            grain = math.lcm(*packings) * ALIGN_BYTES
            yield -(-count * payload // grain) * grain, packings


def _lost(
    size: tuple[int, tuple[int, ...]], payloads: Sequence[int], arena_bytes: int
) -> tuple[float, int]:
    physical_bytes, packings = size
    used = min(p * n / physical_bytes for p, n in zip(payloads, packings, strict=True))
    return (1.0 - used) + (len(payloads) + 1) * physical_bytes / arena_bytes, physical_bytes
