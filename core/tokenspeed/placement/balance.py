"""Which expert lies in which slot: from counts of choices to an even load of the ranks.

    8 experts, 2 ranks of 5 slots, expert 3 chosen most:   0 1 5 3 7 | 4 3 6 2 0

Slots are numbered over all ranks; slots beyond the experts hold copies of those chosen most, and
an expert's copies share its tokens evenly. Pure functions of numbers that all ranks have: each
computes the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heapreplace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    Slots = tuple[int, ...]

WORTH = 0.9
"""Experts are moved where the busiest rank's load falls to this share of it, or below."""


@dataclass(frozen=True, slots=True)
class Copy:
    """An expert's weights go from one slot to another; numbers count the slots of all ranks."""

    source: int
    target: int


def first_placement(experts: int, ranks: int, spare: int) -> Slots:
    """Return the expert in each slot after loading: a rank's share, copies of its first ones."""
    share = experts // ranks
    return tuple(
        rank * share + slot % share for rank in range(ranks) for slot in range(share + spare)
    )


def balanced(counts: Sequence[int], ranks: int, now: Slots) -> Slots:
    """Return the expert in each slot for these counts; `now` where moving is not worth it.

    Slots in excess go one by one to the expert with the largest share a copy; copies then go, the
    largest share first, to the rank with the least load that has a free slot. What a rank keeps
    stays in its slot.

    Args:
        counts: choices of each expert.
        now: the expert in each slot.
    """
    copies = _copies(counts, ranks, len(now))
    held = _packed(counts, copies, ranks, now)
    found = _settled(held, now)
    before, after = peak(counts, ranks, now), peak(counts, ranks, found)
    return found if after < before and after <= WORTH * before else now


def peak(counts: Sequence[int], ranks: int, placement: Slots) -> float:
    """Return the choices that the busiest rank computes."""
    return max(loads(counts, ranks, placement))


def loads(counts: Sequence[int], ranks: int, placement: Slots) -> list[float]:
    """Return the choices that each rank computes."""
    share = _shares(counts, [placement.count(expert) for expert in range(len(counts))])
    size = len(placement) // ranks
    return [
        sum(share[expert] for expert in placement[rank * size : (rank + 1) * size])
        for rank in range(ranks)
    ]


def copies_between(now: Slots, then: Slots, ranks: int) -> list[Copy]:
    """Return what has to be copied, from the slot's own rank where it can be, else evenly."""
    size = len(now) // ranks
    sent = [0] * ranks
    sources: dict[int, list[int]] = {}
    for slot, expert in enumerate(now):
        sources.setdefault(expert, []).append(slot)
    found = []
    for target, expert in enumerate(then):
        if now[target] == expert:
            continue
        own = target // size
        source = min(
            sources[expert], key=lambda slot: (slot // size != own, sent[slot // size], slot)
        )
        sent[source // size] += 1
        found.append(Copy(source, target))
    return found


def _copies(counts: Sequence[int], ranks: int, slots: int) -> list[int]:
    """Return how many copies each expert gets, at most one a rank while others can have more."""
    copies = [1] * len(counts)
    heap = [(-float(count), expert) for expert, count in enumerate(counts)]
    heapify(heap)
    for _ in range(slots - len(counts)):
        expert = heap[0][1]
        copies[expert] += 1
        is_everywhere = copies[expert] >= ranks
        heapreplace(heap, (1.0 if is_everywhere else -counts[expert] / copies[expert], expert))
    return copies


def _packed(
    counts: Sequence[int], copies: Sequence[int], ranks: int, now: Slots
) -> list[list[int]]:
    """Return the experts of each rank."""
    size = len(now) // ranks
    share = _shares(counts, copies)
    kept = [{*now[rank * size : (rank + 1) * size]} for rank in range(ranks)]
    held: list[list[int]] = [[] for _ in range(ranks)]
    load = [0.0] * ranks
    for expert in sorted(range(len(counts)), key=lambda expert: (-share[expert], expert)):
        for _ in range(copies[expert]):
            free = (rank for rank in range(ranks) if len(held[rank]) < size)
            rank = min(free, key=lambda r: (expert in held[r], load[r], expert not in kept[r], r))
            held[rank].append(expert)
            load[rank] += share[expert]
    return held


def _settled(held: Sequence[Sequence[int]], now: Slots) -> Slots:
    """Return the expert in each slot: what a rank has had stays where it was."""
    placement: list[int] = []
    for experts in held:
        coming = [*experts]
        own: list[int | None] = []
        for expert in now[len(placement) : len(placement) + len(experts)]:
            stays = expert in coming
            own.append(expert if stays else None)
            if stays:
                coming.remove(expert)
        placement += [coming.pop(0) if expert is None else expert for expert in own]
    return tuple(placement)


def _shares(counts: Sequence[int], copies: Sequence[int]) -> list[float]:
    return [count / number for count, number in zip(counts, copies, strict=True)]
