"""Cache groups for tests."""

from __future__ import annotations

from tokenspeed.contracts.model import CacheGroup, gqa_fields


def make_groups(*shapes: tuple[int, int, int]) -> tuple[CacheGroup, ...]:
    """Return one full group a shape (layers, kv heads, head dim); layers are dealt in turn."""
    order = sorted(
        ((position, index) for index, shape in enumerate(shapes) for position in range(shape[0]))
    )
    return tuple(
        CacheGroup(
            name=f"group{index}",
            kind="full",
            layers=tuple(layer for layer, (_, owner) in enumerate(order) if owner == index),
            fields=gqa_fields(heads, dim),
        )
        for index, (_, heads, dim) in enumerate(shapes)
    )
