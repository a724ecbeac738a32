"""The arena's solved geometry: addresses of every group's blocks, layers, fields and pages.

A physical block holds `packing` logical blocks of one group, at equal distances, so that the block
id `physical * packing + index` times `block_stride_bytes` is an address for every group:

    |<------------- physical_bytes ------------->|
    | group A: | block 0 | block 1 | block 2   | |   packing 3
    | group B: | block 0             |           |   packing 1, the rest is waste

block_major: that is all. layer_major: the arena has `num_slabs` slabs, each holds one slice of
every physical block, and a group's layers are dealt over the slabs in order.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenspeed.contracts.model import CacheGroup
    from tokenspeed.kv.geometry import FieldLayout

GIB = 2**30


@dataclass(frozen=True, slots=True)
class GroupLayout:
    """How one cache group lies in a physical block.

    Args:
        group: as declared, or a piece of it where its layers were split ("kda.0", "kda.1").
        source: name of the group that the model declared.
        packing: logical blocks in a physical block.
        layers_per_slice: layers of one block that lie together in a slab.
        block_stride_bytes: distance between two logical blocks in a slab.
        payload_bytes: bytes of one logical block that hold something, all layers of the group.
        logical_bytes: a physical block's bytes / packing.
        slice_bytes: bytes from the first to the last of a block in one slab.
        fields: where they lie in a slice.
    """

    group: CacheGroup
    source: str
    packing: int
    layers_per_slice: int
    block_stride_bytes: int
    payload_bytes: int
    logical_bytes: int
    slice_bytes: int
    fields: tuple[FieldLayout, ...]

    @property
    def name(self) -> str:
        """The group's name, unique in the layout."""
        return self.group.name

    @property
    def kind(self) -> str:
        """full, window or state."""
        return self.group.kind

    @property
    def layers(self) -> tuple[int, ...]:
        """The model's layers that lie in it."""
        return self.group.layers

    @property
    def waste(self) -> float:
        """Share of a physical block that this group leaves unused, in [0, 1)."""
        return 1.0 - self.payload_bytes / self.logical_bytes


@dataclass(frozen=True, slots=True)
class PageIds:
    """From block ids to the ids of pages: page i of block b is b * per_block + i * step.

    Args:
        page_tokens: tokens of a page.
        num_pages: pages of a block.
        per_block, step: see above; 1 and num_pages where pages lie dense.
        unit_bytes: distance between the addresses of two consecutive page ids.
    """

    page_tokens: int
    num_pages: int
    per_block: int
    step: int
    unit_bytes: int


@dataclass(frozen=True, slots=True)
class ArenaLayout:
    """The solved geometry.

    Args:
        physical_bytes: bytes of a physical block, the same for all groups.
        num_physical_blocks: including block 0, the sentinel.
        block_tokens: tokens of a logical block of a group that keeps something per token.
        groups: in the order of the plan's group indices.
        order: "block_major", a block's layers in one piece; or "layer_major", a layer's blocks.
        num_slabs: slices of a physical block; 1 in block_major.
    """

    physical_bytes: int
    num_physical_blocks: int
    block_tokens: int
    groups: tuple[GroupLayout, ...]
    order: str = "block_major"
    num_slabs: int = 1

    @property
    def total_bytes(self) -> int:
        """Bytes of the arena that are used, the sentinel included."""
        return self.physical_bytes * self.num_physical_blocks

    @property
    def slab_bytes(self) -> int:
        """Distance between two slabs."""
        return self.total_bytes // self.num_slabs

    @property
    def bytes_per_token(self) -> float:
        """Bytes that one more cached token of a long sequence takes, waste included."""
        full = sum(group.logical_bytes for group in self.groups if group.kind == "full")
        return full / self.block_tokens

    @property
    def tokens_per_gib(self) -> int:
        """Tokens of a long sequence that a GiB of arena keeps."""
        return int(GIB / self.bytes_per_token)

    def num_blocks(self, group_index: int) -> int:
        """Return how many logical block ids a group has, the sentinel's included."""
        return self.num_physical_blocks * self.groups[group_index].packing

    def field_address(self, group_index: int, field: FieldLayout, position: int) -> int:
        """Return the byte where a field of the group's `position`-th layer starts in block 0."""
        slab, inner = divmod(position, self.groups[group_index].layers_per_slice)
        return slab * self.slab_bytes + field.offset_bytes + inner * field.layer_stride_bytes

    def page_ids(self, group_index: int) -> PageIds | None:
        """Return how block ids become page ids; None where the group is read in whole blocks."""
        group = self.groups[group_index]
        paged = [field for field in group.fields if field.page_tokens]
        if not paged:
            return None
        size, page_tokens = paged[0].page_bytes, paged[0].page_tokens
        unit = math.gcd(group.block_stride_bytes, size)
        num_pages = self.block_tokens // page_tokens
        return PageIds(page_tokens, num_pages, group.block_stride_bytes // unit, size // unit, unit)
