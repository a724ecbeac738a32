"""The pictures of several schedulers as that of one: columns joined, counts summed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SHOWN = (
    "waiting", "prefilling", "decoding", "retracted", "blocks_total", "blocks_used",
    "blocks_cached", "blocks_free", "prompt_tokens", "cached_tokens", "output_tokens",
)  # fmt: skip
"""Counts that the picture has of each partition."""


def summed(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return mappings of equal keys with numbers, and lists of numbers, added up; texts stay."""
    first, *others = parts
    return {name: _sum([value, *(part[name] for part in others)]) for name, value in first.items()}


def joined_state(
    parts: Sequence[tuple[Mapping[str, Any], Mapping[str, int]]], *, slots_each: int
) -> dict[str, Any]:
    """Return the state of all partitions, in the shape that `Scheduler.state` has.

    Args:
        parts: state and stats of each.
    """
    states = [state for state, _ in parts]
    columns = [
        _numbered(state["requests"], partition, slots_each)
        for partition, state in enumerate(states)
    ]
    return {
        **states[0],
        "requests": _joined(columns),
        "groups": [_group(group) for group in zip(*(s["groups"] for s in states), strict=True)],
        "transfers": [_moves(kind) for kind in zip(*(s["transfers"] for s in states), strict=True)],
        "parked": sum(state["parked"] for state in states),
        "partitions": [{name: counts[name] for name in SHOWN} for _, counts in parts],
    }


def _sum(values: Sequence[Any]) -> Any:
    if isinstance(values[0], (list, tuple)):
        return [sum(numbers) for numbers in zip(*values, strict=True)]
    return sum(values) if isinstance(values[0], (int, float)) else values[0]


def _numbered(columns: Mapping[str, Any], partition: int, slots_each: int) -> dict[str, Any]:
    """Return columns with the slot among all, and the partition."""
    slots = [slot if slot < 0 else slot + partition * slots_each for slot in columns["slot"]]
    return {**columns, "slot": slots, "partition": [partition] * len(slots)}


def _joined(columns: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    joined: dict[str, Any] = {
        name: [value for own in columns for value in own[name]]
        for name in columns[0]
        if name != "blocks"
    }
    blocks = zip(*(own["blocks"] for own in columns), strict=True)
    return {**joined, "blocks": [[count for own in group for count in own] for group in blocks]}


def _moves(kinds: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    oldest = [kind["oldest_us"] for kind in kinds if kind["count"]]
    return {
        **kinds[0],
        "count": sum(kind["count"] for kind in kinds),
        "oldest_us": min(oldest, default=0),
    }


def _group(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return a cache group's counts summed; what it is (name, kind, packing) is the same in all."""
    return {**summed(parts), "packing": parts[0]["packing"]}
