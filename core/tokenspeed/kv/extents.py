"""Where the bytes of a block's layers lie: (base, stride, count) runs for copies and transfers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenspeed.kv.layout import ArenaLayout


@dataclass(frozen=True, slots=True)
class Extent:
    """`count` runs of `run_bytes`, `stride_bytes` apart, the first at `base_bytes` of the arena."""

    base_bytes: int
    run_bytes: int
    stride_bytes: int
    count: int

    @property
    def total_bytes(self) -> int:
        """Bytes of all runs."""
        return self.run_bytes * self.count


def layer_ranges(num_layers: int, num_ranges: int) -> tuple[tuple[int, int], ...]:
    """Cut a group's layer positions into `num_ranges` half-open ranges of nearly equal length."""
    ends = [num_layers * index // num_ranges for index in range(num_ranges + 1)]
    return tuple(itertools.pairwise(ends))


def block_bytes(
    layout: ArenaLayout, group_index: int, block: int, layers: tuple[int, int]
) -> tuple[Extent, ...]:
    """Return the bytes of the group's layer positions [first, last) in a block, in file order.

    One extent where a layer's fields lie together: a single run in block_major, a run a slab in
    layer_major (with a shorter one before or after, where the range cuts a slab). One a field where
    pages are packed.
    """
    group = layout.groups[group_index]
    start, (first, last) = block * group.block_stride_bytes, layers
    per_slice = group.layers_per_slice
    extents: list[Extent] = []
    for offset, stride in _columns(layout, group_index):
        position = first
        while position < last:
            slab, inner = divmod(position, per_slice)
            whole = (last - position) // per_slice if inner == 0 else 0
            length = per_slice if whole else min(per_slice - inner, last - position)
            base = slab * layout.slab_bytes + start + offset + inner * stride
            extents.append(Extent(base, length * stride, layout.slab_bytes, max(whole, 1)))
            position += length * max(whole, 1)
    return tuple(extents)


def _columns(layout: ArenaLayout, group_index: int) -> tuple[tuple[int, int], ...]:
    """Return (offset, layer stride) of what lies together: all of a layer's fields, or each."""
    fields = layout.groups[group_index].fields
    strides = {field.layer_stride_bytes for field in fields}
    is_together = len(strides) == 1 and max(f.offset_bytes for f in fields) < min(strides)
    if is_together:
        return ((0, fields[0].layer_stride_bytes),)
    return tuple((field.offset_bytes, field.layer_stride_bytes) for field in fields)
