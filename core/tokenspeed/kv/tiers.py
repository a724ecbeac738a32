"""Cache blocks as bytes, on the device and in the host tier: what transfers copy.

The host tier has physical blocks like the arena's: a tier slot is a logical block id of its group,
and slot times `logical_bytes` its address. Inside a slot the layer ranges follow one another, each
as its extents in file order, so that a range, a block, and a record of a store are one piece:

    slot   | range 0: layers [0, a) | range 1: layers [a, b) | ... |  unused  |

Knows no keys, and not who owns a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.errors import CapacityError
from tokenspeed.kv.extents import block_bytes, layer_ranges

if TYPE_CHECKING:
    import torch

    from tokenspeed.kv.layout import ArenaLayout


@dataclass(frozen=True, slots=True)
class Part:
    """One extent of a layer range in every block: (blocks, runs, bytes) uint8 views."""

    device: torch.Tensor
    host: torch.Tensor


@dataclass(frozen=True, slots=True)
class GroupBytes:
    """Where one group's blocks lie.

    Args:
        ranges: by layer range, what has to be copied.
        slot_bytes: distance between two tier slots.
        used_bytes: of a slot; the length of a store's record.
    """

    ranges: tuple[tuple[Part, ...], ...]
    slot_bytes: int
    used_bytes: int


def tier_bytes(
    layout: ArenaLayout, arena: torch.Tensor, host: torch.Tensor, num_ranges: int
) -> tuple[GroupBytes, ...]:
    """Return every group's blocks on the device and in the host tier.

    Args:
        arena: (>= layout.total_bytes,) uint8 device.
        host: (bytes,) uint8 host; as many physical blocks as fit are used.
        num_ranges: into how many layer ranges a block is cut.
    Raises:
        CapacityError: the host tier has no room for a block beside its unused block 0.
    """
    num_physical = host.numel() // layout.physical_bytes
    if num_physical < 2:
        raise CapacityError(
            f"the host tier has {host.numel():,} bytes, {2 * layout.physical_bytes:,} are needed "
            "(two physical blocks); raise host_kv_gib"
        )
    return tuple(
        _group_bytes(layout, index, arena, host, num_physical, num_ranges)
        for index in range(len(layout.groups))
    )


def _group_bytes(
    layout: ArenaLayout,
    index: int,
    arena: torch.Tensor,
    host: torch.Tensor,
    num_physical: int,
    num_ranges: int,
) -> GroupBytes:
    group = layout.groups[index]
    num_slots, used_bytes = num_physical * group.packing, 0
    ranges = []
    for layers in layer_ranges(len(group.layers), num_ranges):
        parts = []
        for extent in block_bytes(layout, index, 0, layers):
            shape = (extent.count, extent.run_bytes)
            device = arena.as_strided(
                (layout.num_blocks(index), *shape),
                (group.block_stride_bytes, extent.stride_bytes, 1),
                extent.base_bytes,
            )
            slots = host.as_strided(
                (num_slots, *shape), (group.logical_bytes, extent.run_bytes, 1), used_bytes
            )
            parts.append(Part(device, slots))
            used_bytes += extent.total_bytes
        ranges.append(tuple(parts))
    assert used_bytes <= group.logical_bytes, "a block fits its slot"
    return GroupBytes(tuple(ranges), group.logical_bytes, used_bytes)
