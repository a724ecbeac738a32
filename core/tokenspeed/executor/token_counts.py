"""How many of a step's tokens each rank has where a program cuts them.

Partitions of data-parallel attention have what the plan gave them; over all other axes tokens are
cut as evenly as it goes, the first ranks with one more:

    7 | 2 tokens of two partitions, cut over two ranks each:  4 3 | 1 1
"""

from __future__ import annotations

from itertools import product
from math import prod
from typing import TYPE_CHECKING

from tokenspeed.contracts.placement import ParallelGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

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
        places = {axis: self._mesh.place(rank, [axis]) for axis in axes}
        return self._at(axes, places)

    def sizes(self, axes: Sequence[str], last: Sequence[str], rank: int) -> list[int]:
        """Return the tokens of the ranks that differ from `rank` in the last axes of `axes`."""
        assert tuple(axes[len(axes) - len(last) :]) == tuple(last), "the fastest axes go first"
        places = {axis: self._mesh.place(rank, [axis]) for axis in axes}
        spans = [range(self._mesh.size([axis])) for axis in last]
        return [
            self._at(axes, {**places, **dict(zip(last, own, strict=True))})
            for own in product(*spans)
        ]

    def _at(self, axes: Sequence[str], places: dict[str, int]) -> int:
        count = self._of_partitions(places)
        for axis in axes:
            if axis not in self._partition_axes:
                size = self._mesh.size([axis])
                count = (count + size - 1 - places[axis]) // size
        return count

    def _of_partitions(self, places: dict[str, int]) -> int:
        """Return the tokens of all partitions with these places."""
        sizes = [self._mesh.size([axis]) for axis in self._partition_axes]
        total = 0
        for number, count in enumerate(self._by_partition):
            own = [number // prod(sizes[index + 1 :]) % size for index, size in enumerate(sizes)]
            if all(
                places.get(axis, place) == place
                for axis, place in zip(self._partition_axes, own, strict=True)
            ):
                total += count
        return total
