"""The least bytes of any program, found by trying everything: slow, plain, and sharing no search.

A state is how far the nodes have come and every layout in which each living value is there. From it
any single collective over any axes may be done to any copy, or the next node run over any choice of
letters that its annotation leaves.
"""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import chain, combinations, count, product
from typing import TYPE_CHECKING

from tokenspeed.errors import PlacementError
from tokenspeed.placement.cost import ELEMENT_BYTES
from tokenspeed.placement.graph import Kind, Ref, StepArgument
from tokenspeed.placement.layout import TOKENS, Layout, Segment
from tokenspeed.placement.rule import Mode, annotated, place
from tokenspeed.placement.views import view_layout

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tokenspeed.placement.graph import Graph, Node, Value
    from tokenspeed.placement.mesh import Mesh

Copies = tuple[frozenset[Layout], ...]


class TooManyError(Exception):
    """There are more states than may be tried."""


def least_bytes(
    graph: Graph,
    mesh: Mesh,
    given: Sequence[Layout],
    wanted: Sequence[Layout],
    *,
    limit: float,
    max_states: int,
) -> float:
    """Return the fewest bytes that a rank sends for one token; `limit` if none has fewer.

    Args:
        given: layouts of the graph's inputs.
        wanted: of its results.
        limit: programs of so many bytes or more are not looked for.
    Raises:
        TooManyError: `max_states` were tried.
    """
    start: dict[int, frozenset[Layout]] = {
        number: _spread(frozenset({layout}), mesh)
        for number, layout in zip(graph.inputs, given, strict=True)
    }
    tie = count()
    heap: list[tuple[float, int, int, dict[int, frozenset[Layout]]]] = [(0.0, next(tie), 0, start)]
    seen: set[tuple[int, tuple[tuple[int, frozenset[Layout]], ...]]] = set()
    while heap:
        spent, _, index, copies = heappop(heap)
        if spent >= limit - 1e-9:
            return limit
        key = index, tuple(sorted(copies.items(), key=lambda item: item[0]))
        if key in seen:
            continue
        seen.add(key)
        if len(seen) > max_states:
            raise TooManyError
        if index == len(graph.nodes) and all(
            layout in copies[number] for number, layout in zip(graph.outputs, wanted, strict=True)
        ):
            return spent
        for number in _needed(graph, index):
            there = copies[number]
            for after, sent in _paid(there, mesh, ELEMENT_BYTES[graph.values[number].dtype]):
                if spent + sent < limit - 1e-9:
                    more = copies | {number: _spread(there | {after}, mesh)}
                    heappush(heap, (spent + sent, next(tie), index, more))
        if index < len(graph.nodes):
            for made, sent in _run(graph.nodes[index], graph.values, copies, mesh):
                if spent + sent < limit - 1e-9:
                    alive = _alive(graph, index + 1, copies | made)
                    heappush(heap, (spent + sent, next(tie), index + 1, alive))
    return limit


def _needed(graph: Graph, index: int) -> set[int]:
    """Return the values that the next node takes: a move may wait until just before its use."""
    if index == len(graph.nodes):
        return {*graph.outputs}
    return {item.number for item in graph.nodes[index].inputs if isinstance(item, Ref)}


def _alive(
    graph: Graph, index: int, copies: Mapping[int, frozenset[Layout]]
) -> dict[int, frozenset[Layout]]:
    needed = {*graph.outputs}
    for node in graph.nodes[index:]:
        needed |= {item.number for item in node.inputs if isinstance(item, Ref)}
    return {number: there for number, there in copies.items() if number in needed}


def _run(
    node: Node, values: Sequence[Value], copies: Mapping[int, frozenset[Layout]], mesh: Mesh
) -> Iterator[tuple[dict[int, frozenset[Layout]], float]]:
    """Yield (layouts of what a node makes, bytes that a rank sends for one token) of each way."""
    refs = [item.number for item in node.inputs if isinstance(item, Ref)]
    if node.kind is Kind.VIEW:
        for layouts in product(*(copies[number] for number in refs)):
            try:
                outputs = view_layout(node, layouts, mesh)
            except PlacementError:
                continue
            yield _made(node, outputs, mesh), 0.0
        return
    own = annotated(node, mesh)
    free = [axis.name for axis in mesh.axes if axis.name not in own]
    for chosen in product(_choices(node), repeat=len(free)):
        try:
            placed = place(node, values, {**own, **dict(zip(free, chosen, strict=True))}, mesh)
        except PlacementError:
            continue
        if all(layout in copies[n] for n, layout in zip(refs, placed.inputs, strict=False)):
            yield _made(node, placed.outputs, mesh), 0.0
    if node.exchanged and mesh.groups[node.spread[node.exchanged]]:
        yield from _exchanged(node, values, copies, mesh)


def _exchanged(
    node: Node, values: Sequence[Value], copies: Mapping[int, frozenset[Layout]], mesh: Mesh
) -> Iterator[tuple[dict[int, frozenset[Layout]], float]]:
    """Yield: every token goes to each rank of the group that one of its two experts is on."""
    axes = mesh.groups[node.spread[node.exchanged]]
    refs = [item.number for item in node.inputs if isinstance(item, Ref)]
    (experts,), ranks = node.weights[0][0], mesh.size(axes)
    own = experts // ranks
    elsewhere = (experts - own) * (experts - own - 1) / (experts * (experts - 1))
    placed = place(node, values, {**annotated(node, mesh), **dict.fromkeys(axes, "T")}, mesh)
    if all(layout in copies[n] for n, layout in zip(refs, placed.inputs, strict=False)):
        sent = 0.0
        for number in (*refs, *node.outputs):
            sent += sum(values[number].parts[-1]) * ELEMENT_BYTES[values[number].dtype]
        yield _made(node, placed.outputs, mesh), sent * (1 - elsewhere) * (ranks - 1) / ranks


def _choices(node: Node) -> list[str | Mode]:
    assert node.rule is not None
    if any(isinstance(item, StepArgument) for item in node.inputs):
        return [Mode.WHOLE]
    patterns = [pattern.dims if pattern else () for pattern in node.rule.inputs]
    held = {dim.letter for dims in patterns[len(node.inputs) :] for dim in dims}
    free = {dim.letter for dims in patterns for dim in dims if not dim.is_whole} - held
    return [Mode.WHOLE, Mode.SUMMANDS, *sorted(free - {"..."}), "...0"]


def _made(node: Node, outputs: Sequence[Layout], mesh: Mesh) -> dict[int, frozenset[Layout]]:
    return {
        number: _spread(frozenset({layout}), mesh)
        for number, layout in zip(node.outputs, outputs, strict=True)
    }


def _spread(there: frozenset[Layout], mesh: Mesh) -> frozenset[Layout]:
    """Add all that follows without traffic."""
    found, todo = {*there}, [*there]
    while todo:
        layout = todo.pop()
        new = {after for after in _free(layout, mesh) if after not in found}
        found |= new
        todo += new
    return frozenset(found)


def _free(layout: Layout, mesh: Mesh) -> Iterator[Layout]:
    used = _used(layout)
    for axis in mesh.axes:
        if axis.name in used:
            continue
        yield Layout(layout.dims, layout.partial | {axis.name})
        for dim, index in _places(layout):
            segment = layout.dims[dim][index]
            ranks = mesh.size((*segment.axes, axis.name))
            if segment.size == TOKENS or segment.size % ranks == 0:
                yield _recut(layout, dim, index, (*segment.axes, axis.name), layout.partial)


def _paid(
    there: frozenset[Layout], mesh: Mesh, element_bytes: int
) -> Iterator[tuple[Layout, float]]:
    for layout in there:
        for after, elements in chain(_reduced(layout, mesh), _joined(layout, mesh)):
            if after not in there:
                yield after, elements * element_bytes


def _reduced(layout: Layout, mesh: Mesh) -> Iterator[tuple[Layout, float]]:
    own = _elements(layout, mesh)
    for length in range(1, len(layout.partial) + 1):
        for axes in combinations(sorted(layout.partial), length):
            share, rest = 1 - 1 / mesh.size(axes), layout.partial - {*axes}
            yield Layout(layout.dims, rest), 2 * share * own
            for dim, index in _places(layout):
                segment = layout.dims[dim][index]
                cut = segment.axes + axes
                fits = segment.size == TOKENS or segment.size % mesh.size(cut) == 0
                if len(layout.dims[dim]) == 1 and fits:
                    yield _recut(layout, dim, index, cut, rest), share * own


def _joined(layout: Layout, mesh: Mesh) -> Iterator[tuple[Layout, float]]:
    for dim, index in _places(layout):
        axes = layout.dims[dim][index].axes
        for kept in range(len(axes)):
            after = _recut(layout, dim, index, axes[:kept], layout.partial)
            alone = Layout((*after.dims[:dim], (after.dims[dim][index],), *after.dims[dim + 1 :]))
            yield after, (1 - 1 / mesh.size(axes[kept:])) * _elements(alone, mesh)


def _used(layout: Layout) -> set[str]:
    return {*layout.partial} | {
        axis for dim, index in _places(layout) for axis in layout.dims[dim][index].axes
    }


def _places(layout: Layout) -> Iterator[tuple[int, int]]:
    return ((dim, index) for dim, row in enumerate(layout.dims) for index in range(len(row)))


def _recut(
    layout: Layout, dim: int, index: int, axes: tuple[str, ...], partial: frozenset[str]
) -> Layout:
    row = list(layout.dims[dim])
    row[index] = Segment(row[index].size, axes)
    return Layout((*layout.dims[:dim], tuple(row), *layout.dims[dim + 1 :]), partial)


def _elements(layout: Layout, mesh: Mesh) -> float:
    total = 1.0
    for row in layout.dims:
        total *= sum((1 if s.size == TOKENS else s.size) / mesh.size(s.axes) for s in row)
    return total
