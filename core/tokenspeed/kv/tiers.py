"""Cache blocks as bytes, on the device and in the host tier: what transfers copy.

The host tier is laid out like the arena, with its own number of physical blocks: a tier slot is a
logical block id of its group, and slot times `logical_bytes` its address. Knows no keys, and not
who owns a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.errors import CapacityError

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from tokenspeed.contracts.model import CacheGroup
    from tokenspeed.kv.layout import ArenaLayout


def block_bytes(
    storage: torch.Tensor, layout: ArenaLayout, groups: Sequence[CacheGroup]
) -> tuple[torch.Tensor, ...]:
    """Return each group's blocks as (blocks, layers, bytes of one layer) uint8 views.

    Args:
        storage: (>= a whole number of physical blocks,) uint8; an arena or a host tier.
    Raises:
        CapacityError: the storage holds no physical block.
    """
    num_physical = storage.numel() // layout.physical_bytes
    if num_physical == 0:
        raise CapacityError(
            f"the tier has {storage.numel():,} bytes, one block of {layout.physical_bytes:,} is "
            "needed; give it more memory"
        )
    views = []
    for group, laid_out in zip(groups, layout.groups, strict=True):
        num_layers = len(group.layers)
        shape = (
            num_physical * laid_out.packing,
            num_layers,
            laid_out.payload_bytes // num_layers,
        )
        views.append(storage.as_strided(shape, (laid_out.logical_bytes, shape[2], 1)))
    return tuple(views)


def layer_span(num_layers: int, layer_range: int, num_ranges: int) -> tuple[int, int]:
    """Return which layers of a group range `layer_range` of `num_ranges` covers, half-open.

    The ranges of a group are disjoint and cover it; one may be empty when layers are few.
    """
    return (
        num_layers * layer_range // num_ranges,
        num_layers * (layer_range + 1) // num_ranges,
    )
