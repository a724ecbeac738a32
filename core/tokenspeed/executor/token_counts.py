"""How many of a step's tokens each rank has where a program cuts them.

All tokens of a step stand in the order of the partitions of data-parallel attention. Cut over these
partitions first, each has what the plan gave it; over any other axis tokens are cut as evenly as it
goes, the first ranks with one more:

    7 | 2 tokens of two partitions, cut over two ranks each:  4 3 | 1 1
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING

from tokenspeed.contracts.placement import ParallelGroup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenspeed.placement.mesh import Mesh


class TokenCounts:
    """The tokens of one step.

    Args:
        by_partition: tokens of each partition.
    """

    def __init__(self, mesh: Mesh, by_partition: Sequence[int]) -> None:
        self._mesh = mesh
        self._by_partition = by_partition
        self._partition_axes = mesh.groups[ParallelGroup.ATTN_DP]
        assert len(by_partition) == mesh.size(self._partition_axes)

    def local(self, axes: Sequence[str], rank: int) -> int:
        """Return the tokens of a rank where they are cut over `axes`, the slowest first."""
        return self._at(axes, {axis: self._mesh.place(rank, [axis]) for axis in axes})

    def sizes(self, axes: Sequence[str], last: Sequence[str], rank: int) -> list[int]:
        """Return the tokens of the ranks that differ from `rank` in the last axes of `axes`."""
        assert tuple(axes[len(axes) - len(last) :]) == tuple(last), "the fastest axes go first"
        places = {axis: self._mesh.place(rank, [axis]) for axis in axes}
        spans = [range(self._mesh.size([axis])) for axis in last]
        return [
            self._at(axes, {**places, **dict(zip(last, own, strict=True))})
            for own in product(*spans)
        ]

    def _at(self, axes: Sequence[str], places: Mapping[str, int]) -> int:
        known = 0
        while known < len(axes) and self._partition_axes[known : known + 1] == (axes[known],):
            known += 1
        count = self._of_partitions([places[axis] for axis in axes[:known]])
        for axis in axes[known:]:
            size = self._mesh.size([axis])
            count = (count + size - 1 - places[axis]) // size
        return count

    def _of_partitions(self, places: Sequence[int]) -> int:
        """Return the tokens of the partitions with these places on the first axes."""
        first = 0
        for axis, place in zip(self._partition_axes, places, strict=False):
            first = first * self._mesh.size([axis]) + place
        each = prod(self._mesh.size([axis]) for axis in self._partition_axes[len(places) :])
        return sum(self._by_partition[first * each : (first + 1) * each])
