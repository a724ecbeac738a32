"""How a layer's tensors lie over the ranks of its group: data for the placement compiler."""

from __future__ import annotations

from dataclasses import dataclass

from tokenspeed.contracts.placement import (
    ParallelGroup,
    Partial,
    Placement,
    Replicate,
    Shard,
)


@dataclass(frozen=True, slots=True)
class LayerPlacement:
    """Placements of one layer: what it takes, what it holds, what it gives.

    Args:
        inputs: of the activation (T, features).
        weight: of the weight; (O, I) for matrices, (V, D) for embeddings.
        outputs: of the result (T, features).
    """

    inputs: Placement
    weight: Placement
    outputs: Placement


def replicated() -> LayerPlacement:
    """Return: every rank computes the whole layer."""
    return LayerPlacement(Replicate(), Replicate(), Replicate())


def column_parallel(group: ParallelGroup) -> LayerPlacement:
    """Return: each rank holds some output features and gives those."""
    return LayerPlacement(Replicate(), Shard(group, 0), Shard(group, 1))


def row_parallel(group: ParallelGroup) -> LayerPlacement:
    """Return: each rank holds some input features and gives a summand of the result."""
    return LayerPlacement(Shard(group, 1), Shard(group, 1), Partial(group))
