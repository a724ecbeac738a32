"""Bytes of cache groups: where each field of each layer lies in one logical block.

Usual order, one layer's fields side by side; with packed pages, one field's layers side by side, so
that a page is at a multiple of its own size for every layer:

    [layer 0: k | v] [layer 1: k | v] ...        [latent: layer 0 | layer 1 | ...] [index: ...]

Pure arithmetic; knows no arena. A state group may be split by layers into pieces, each a group.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tokenspeed.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.attention import CacheDemand
    from tokenspeed.contracts.model import CacheField, CacheGroup

ALIGN_BYTES = 64
FIELD_ALIGN_BYTES = 16
ELEMENT_BYTES: Mapping[str, int] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
    "uint8": 1,
}


@dataclass(frozen=True, slots=True)
class FieldLayout:
    """Where one field lies in a logical block.

    Args:
        name: of the field.
        shape: elements of one layer, per token or per sequence.
        dtype: torch's name of the element type.
        span_tokens: tokens of a block, between the last two axes; 0: kept per sequence.
        offset_bytes: from the start of the block's slice to the field of the slice's first layer.
        layer_stride_bytes: from one layer of the slice to the next.
        page_tokens: the field is read in pages of that many tokens; 0: in whole blocks.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    span_tokens: int
    offset_bytes: int = 0
    layer_stride_bytes: int = 0
    page_tokens: int = 0

    @property
    def element_bytes(self) -> int:
        """Bytes of one element."""
        return ELEMENT_BYTES[self.dtype]

    @property
    def payload_bytes(self) -> int:
        """Bytes of one layer in one block."""
        return math.prod(self.shape) * max(self.span_tokens, 1) * self.element_bytes

    @property
    def page_bytes(self) -> int:
        """Distance between two pages of one layer: one row of the last axis for page_tokens."""
        return self.page_tokens * self.shape[-1] * self.element_bytes


@dataclass(frozen=True, slots=True)
class BlockGeometry:
    """One logical block of a group, before packing.

    Args:
        group: the declared group, or a piece of it.
        layers_per_slice: layers that lie together; all of them unless the arena is layer_major.
        fields: with offsets in a slice.
        slice_bytes: bytes of a slice that are taken.
        grain_bytes: the distance between two blocks must be a multiple.
    """

    group: CacheGroup
    layers_per_slice: int
    fields: tuple[FieldLayout, ...]
    slice_bytes: int
    grain_bytes: int

    @property
    def payload_bytes(self) -> int:
        """Bytes of a block that hold something, all layers."""
        return len(self.group.layers) * sum(field.payload_bytes for field in self.fields)


def block_geometry(
    group: CacheGroup, demand: CacheDemand, *, block_tokens: int, dtype: str, num_slabs: int
) -> BlockGeometry:
    """Lay out one block of a group.

    Args:
        demand: of the backend that reads the group.
        block_tokens: tokens of a logical block.
        dtype: of fields that declare none.
        num_slabs: slices that a block is cut in, by layers.
    """
    span = 0 if group.kind == "state" else block_tokens
    bare = [_bare_field(field, demand, span, dtype) for field in group.fields]
    layers = -(-len(group.layers) // num_slabs)
    if demand.packed:
        fields, size = _fields_apart(bare, layers)
        grain = math.lcm(ALIGN_BYTES, *(f.page_bytes for f in bare if f.page_tokens))
    else:
        fields, size = _fields_together(bare, layers)
        grain = ALIGN_BYTES
    return BlockGeometry(group, layers, fields, size, grain)


def unit_bytes(group: CacheGroup, dtype: str) -> int:
    """Return the bytes of all layers for one token, or for one snapshot of a state group."""
    return len(group.layers) * sum(
        math.prod(field.shape) * ELEMENT_BYTES[field.dtype or dtype] for field in group.fields
    )


def split_by_layers(group: CacheGroup, num_pieces: int) -> tuple[CacheGroup, ...]:
    """Return pieces of nearly equal layer counts, named "group.0", "group.1" and on."""
    if num_pieces == 1:
        return (group,)
    ends = [len(group.layers) * piece // num_pieces for piece in range(num_pieces + 1)]
    return tuple(
        replace(group, name=f"{group.name}.{piece}", layers=group.layers[start:end])
        for piece, (start, end) in enumerate(itertools.pairwise(ends))
    )


def _bare_field(field: CacheField, demand: CacheDemand, span: int, dtype: str) -> FieldLayout:
    name = field.dtype or dtype
    if name not in ELEMENT_BYTES:
        raise ConfigError(
            f"cache field {field.name!r} is of dtype {name!r}, allowed are "
            f"{', '.join(ELEMENT_BYTES)}; choose one of them"
        )
    largest = span if demand.packed else span - 1  # a page may be a block, where it must be packed
    paged = field.name in demand.fields and 0 < demand.page_tokens <= largest
    return FieldLayout(
        field.name, field.shape, name, span, page_tokens=demand.page_tokens if paged else 0
    )


def _fields_together(bare: list[FieldLayout], layers: int) -> tuple[tuple[FieldLayout, ...], int]:
    offset, fields = 0, []
    for field in bare:
        offset = _round_up(offset, FIELD_ALIGN_BYTES)
        fields.append(replace(field, offset_bytes=offset))
        offset += field.payload_bytes
    stride = _round_up(offset, FIELD_ALIGN_BYTES)
    return tuple(replace(field, layer_stride_bytes=stride) for field in fields), stride * layers


def _fields_apart(bare: list[FieldLayout], layers: int) -> tuple[tuple[FieldLayout, ...], int]:
    offset, by_name = 0, {}
    for field in sorted(bare, key=lambda field: -field.page_tokens):
        grain = field.page_bytes or FIELD_ALIGN_BYTES
        offset, stride = _round_up(offset, grain), _round_up(field.payload_bytes, grain)
        by_name[field.name] = replace(field, offset_bytes=offset, layer_stride_bytes=stride)
        offset += stride * layers
    return tuple(by_name[field.name] for field in bare), offset


def _round_up(size: int, grain: int) -> int:
    return -(-size // grain) * grain
