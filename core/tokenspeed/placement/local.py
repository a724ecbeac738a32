"""Geometry of one rank: what is left of cache groups and expert groups when they are cut."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from tokenspeed.contracts.placement import ParallelGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.contracts.model import CacheField, CacheGroup
    from tokenspeed.contracts.moe import ExpertGroup
    from tokenspeed.contracts.placement import Shards


def local_cache_groups(groups: Sequence[CacheGroup], shards: Shards) -> tuple[CacheGroup, ...]:
    """Return what a rank caches: its heads of its stage's layers, which keep their indices.

    Groups without a layer in the stage are left out. A field is cut by its units over the heads'
    ranks, as far as they go: kv heads that several ranks need are held by each.
    """
    found = []
    for group in groups:
        layers = tuple(layer for layer in group.layers if shards.holds_layer(layer))
        fields = tuple(_local_field(field, shards) for field in group.fields)
        if layers:
            found.append(replace(group, layers=layers, fields=fields))
    return tuple(found)


def local_expert_group(group: ExpertGroup, shards: Shards) -> ExpertGroup:
    """Return what a rank computes of an expert group: some experts, and of those some features."""
    experts, _ = shards.place(ParallelGroup.MOE_EP, group.num_experts)
    features, _ = shards.place(ParallelGroup.MOE_TP, group.features)
    return replace(
        group,
        layers=tuple(layer for layer in group.layers if shards.holds_layer(layer)),
        num_experts=group.num_experts // experts + (shards.spare_experts or 0),
        features=group.features // features,
    )


def _local_field(field: CacheField, shards: Shards) -> CacheField:
    parts, _ = shards.place(ParallelGroup.ATTN_TP, field.units)
    units = field.units // parts
    return replace(field, shape=(field.shape[0] // parts, *field.shape[1:]), units=units)
