"""Runs: axes that no annotation of a graph tells apart; the search takes them as one."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from tokenspeed.placement.blocks import signature
from tokenspeed.placement.rule import annotated, place

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator

    from tokenspeed.placement.graph import Graph
    from tokenspeed.placement.mesh import Mesh

Axes = tuple[str, ...]


def runs_of(graph: Graph, mesh: Mesh) -> tuple[Axes, ...]:
    """Return the runs of a mesh's axes, the slowest first.

    Raises:
        PlacementError: an annotation is wrong, or does not fit the sizes.
    """
    groups = {*mesh.groups.values(), *_cuts(graph, mesh)}
    names = [axis.name for axis in mesh.axes]
    alike = groupby(names, key=lambda name: frozenset(axes for axes in groups if name in axes))
    return tuple(tuple(run) for _, run in alike)


def _cuts(graph: Graph, mesh: Mesh) -> Iterator[Axes]:
    """Yield the axes of every segment that an annotation cuts, of inputs, weights and results."""
    seen: set[Hashable] = set()
    for node in graph.nodes:
        if not node.rule or (sign := signature(node, graph.values)) in seen:
            continue
        seen.add(sign)
        placed = place(node, graph.values, annotated(node, mesh), mesh)
        for layout in (*placed.inputs, *placed.outputs):
            yield from (segment.axes for dim in layout.dims for segment in dim)
            yield tuple(axis.name for axis in mesh.axes if axis.name in layout.partial)
