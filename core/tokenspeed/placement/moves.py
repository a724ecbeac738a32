"""From one layout to another: the cheapest row of collectives, in whole or over some axes only.

    summands --all-reduce--> whole              2 (n-1)/n of the tensor is sent by each rank
    summands --reduce-scatter--> cut              (n-1)/n
    cut --all-gather--> whole                     (n-1)/n of what comes out
    whole --slice--> cut, whole --first--> summands       nothing

A segment that is cut over several axes is joined from the fastest one on, and cut by appending. The
search is Dijkstra's over the layouts between; long-lived, a `Mover` answers a question twice from
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import chain, combinations, count
from typing import TYPE_CHECKING

from tokenspeed.placement.cost import local_elements
from tokenspeed.placement.layout import TOKENS, Layout, Segment
from tokenspeed.placement.program import Collective

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from tokenspeed.placement.cost import CostModel, Link
    from tokenspeed.placement.mesh import Mesh

Axes = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Step:
    """One collective, before it has registers; see `program.Move`.

    Args:
        time_us: in a step of the mover's tokens.
    """

    collective: Collective
    axes: Axes
    dim: int
    segment: int
    before: Layout
    after: Layout
    bytes_per_token: float
    time_us: float


@dataclass(frozen=True, slots=True)
class Path:
    """How one layout becomes another.

    Args:
        steps: in their order; none where the layouts are the same.
    """

    steps: tuple[Step, ...] = ()
    time_us: float = 0.0
    bytes_per_token: float = 0.0


HERE = Path()


class Mover:
    """Finds paths between layouts over one mesh.

    Args:
        tokens: of a step, all ranks together.
        runs: axes that are only moved together, the slowest first; None: each by itself.
    """

    def __init__(
        self, mesh: Mesh, cost: CostModel, tokens: int, *, runs: Sequence[Axes] | None = None
    ) -> None:
        self.mesh = mesh
        self.cost = cost
        self.tokens = tokens
        self.runs = [(axis.name,) for axis in mesh.axes] if runs is None else list(runs)
        self._links: dict[Axes, Link] = {}
        self._paths: dict[tuple[Layout, Layout, int], Path | None] = {}

    def path(self, before: Layout, after: Layout, element_bytes: int) -> Path | None:
        """Return the cheapest path, or None where there is none."""
        if before == after:
            return HERE
        key = before, after, element_bytes
        if key not in self._paths:
            self._paths[key] = self._search(before, after, element_bytes)
        return self._paths[key]

    def _search(self, before: Layout, target: Layout, element_bytes: int) -> Path | None:
        """Return the path of least time; of equals that of fewer bytes, then of fewer steps."""
        tie = count()
        heap: list[tuple[float, float, int, int, Layout, tuple[Step, ...]]]
        heap = [(0.0, 0.0, 0, next(tie), before, ())]
        done: set[Layout] = set()
        while heap:
            time_us, num_bytes, length, _, layout, steps = heappop(heap)
            if layout == target:
                return Path(steps, time_us, num_bytes)
            if layout in done:
                continue
            done.add(layout)
            for step in self._steps(layout, target, element_bytes):
                if step.after not in done:
                    ranked = time_us + step.time_us, num_bytes + step.bytes_per_token, length + 1
                    heappush(heap, (*ranked, next(tie), step.after, (*steps, step)))
        return None

    def _steps(self, layout: Layout, target: Layout, element_bytes: int) -> Iterator[Step]:
        """Yield what may come next on the way to `target`.

        A cut that the target has makes all that follows smaller, so it comes at once, and sums come
        before what is joined; the first rank's whole tensor becomes a summand last of all.
        """
        for makes in (self._sliced, self._reduced, self._joined, self._firsts):
            changes = list(makes(layout, target))
            for collective, axes, dim, segment, after in changes:
                elements = self._sent(collective, axes, dim, segment, layout, after)
                num_bytes = elements * element_bytes
                time_us = self._link(axes).time_us(num_bytes * self.tokens) if num_bytes else 0.0
                yield Step(collective, axes, dim, segment, layout, after, num_bytes, time_us)
            if changes:
                return

    def _link(self, axes: Axes) -> Link:
        link = self._links.get(axes)
        if link is None:
            link = self._links[axes] = self.cost.link(self.mesh, axes)
        return link

    def _sliced(self, layout: Layout, target: Layout) -> Iterator[Change]:
        for dim, index, wanted in _segments(target):
            have = layout.dims[dim][index].axes
            missing = wanted.axes[len(have) :]
            if not missing or wanted.axes[: len(have)] != have:
                continue
            axes = next((run for run in self.runs if run[0] == missing[0]), ())
            elsewhere = _cutting(layout, but=dim) | layout.partial
            if axes and missing[: len(axes)] == axes and not elsewhere & {*axes}:
                yield Collective.SLICE, axes, dim, index, _cut(layout, dim, index, have + axes)
                return

    def _firsts(self, layout: Layout, target: Layout) -> Iterator[Change]:
        for run in self.runs:
            if {*run} <= target.partial - layout.partial - _cutting(layout):
                yield Collective.FIRST, run, 0, 0, Layout(layout.dims, layout.partial | {*run})
                return

    def _reduced(self, layout: Layout, target: Layout) -> Iterator[Change]:
        summed = [run for run in self.runs if {*run} <= layout.partial - target.partial]
        together = tuple(chain(*summed))
        for axes in _subsets(summed):
            rest = layout.partial - {*axes}
            if self._is_worth(axes, together):
                yield Collective.ALL_REDUCE, axes, 0, 0, Layout(layout.dims, rest)
            for dim, segments in enumerate(layout.dims):
                if len(segments) == 1 and self._may_scatter(layout, target, dim, axes, together):
                    after = _cut(layout, dim, 0, segments[0].axes + axes)
                    yield Collective.REDUCE_SCATTER, axes, dim, 0, Layout(after.dims, rest)

    def _may_scatter(
        self, layout: Layout, target: Layout, dim: int, axes: Axes, together: Axes
    ) -> bool:
        """Say whether parts of this dim help.

        The target has them; or they are joined again, with others or over a faster link.
        """
        segment, wanted = layout.dims[dim][0], target.dims[dim][0].axes
        parts = segment.axes + axes
        if wanted[: len(parts)] == parts:
            return True
        is_joined = wanted[: len(segment.axes)] != segment.axes
        is_faster = axes != together and self._is_worth(axes, together)
        return segment.size == TOKENS and (is_joined or is_faster)

    def _joined(self, layout: Layout, target: Layout) -> Iterator[Change]:
        """Yield joins, in each dimension of its first segment: the others cost the same later."""
        for dim, segments in enumerate(layout.dims):
            for index, segment in enumerate(segments):
                kept = _common(segment.axes, target.dims[dim][index].axes)
                if kept == len(segment.axes):
                    continue
                together = segment.axes[kept:]
                for axes in self._ends_of(together):
                    if self._is_worth(axes, together):
                        rest = segment.axes[: len(segment.axes) - len(axes)]
                        after = _cut(layout, dim, index, rest)
                        yield Collective.ALL_GATHER, axes, dim, index, after
                break

    def _is_worth(self, axes: Axes, together: Axes) -> bool:
        """Say whether a collective over some axes may be better than one over all at once.

        Over one link it never is: the bytes are no fewer and the latency counts twice.
        """
        return axes == together or self._link(axes) != self._link(together)

    def _ends_of(self, axes: Axes) -> Iterator[Axes]:
        """Yield the last run of `axes`, the last two, and so on."""
        for start in reversed(range(len(axes))):
            if any(run == axes[start : start + len(run)] for run in self.runs):
                yield axes[start:]

    def _sent(
        self,
        collective: Collective,
        axes: Axes,
        dim: int,
        segment: int,
        before: Layout,
        after: Layout,
    ) -> float:
        """Return the elements that one rank sends for one token."""
        if collective in (Collective.SLICE, Collective.FIRST):
            return 0.0
        ranks = self.mesh.size(axes)
        share = (ranks - 1) / ranks
        if collective is Collective.ALL_GATHER:
            joined = after.dims[dim][segment : segment + 1]
            dims = (*after.dims[:dim], joined, *after.dims[dim + 1 :])
            return share * local_elements(Layout(dims), self.mesh)
        times = 2 if collective is Collective.ALL_REDUCE else 1
        return times * share * local_elements(before, self.mesh)


Change = tuple[Collective, Axes, int, int, Layout]
"""Collective, axes, dim, segment, layout after it."""


def _segments(layout: Layout) -> Iterator[tuple[int, int, Segment]]:
    for dim, segments in enumerate(layout.dims):
        for index, segment in enumerate(segments):
            yield dim, index, segment


def _cutting(layout: Layout, *, but: int = -1) -> frozenset[str]:
    """Return the axes that cut any dimension, or any other one than `but`."""
    return frozenset(
        axis for dim, _, segment in _segments(layout) if dim != but for axis in segment.axes
    )


def _cut(layout: Layout, dim: int, index: int, axes: Axes) -> Layout:
    segments = list(layout.dims[dim])
    segments[index] = Segment(segments[index].size, axes)
    dims = (*layout.dims[:dim], tuple(segments), *layout.dims[dim + 1 :])
    return Layout(dims, layout.partial)


def _subsets(runs: Sequence[Axes]) -> Iterable[Axes]:
    """Return the axes of every choice of runs that is not empty, in their order."""
    sizes = range(1, len(runs) + 1)
    return (tuple(chain(*chosen)) for size in sizes for chosen in combinations(runs, size))


def _common(one: Axes, other: Axes) -> int:
    """Return how many first axes two cuts share."""
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length
