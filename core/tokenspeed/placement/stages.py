"""Pipeline stages: which nodes of a graph each one runs, and what goes from one to the next.

    stage 0: embedding, first layers | ... | last stage: last layers, final norm, head

What depends on a step's inputs alone, such as the angles of its positions, is computed wherever it
is used; everything else that lives across a cut is passed on.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from tokenspeed.errors import ConfigError
from tokenspeed.placement.blocks import refs

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokenspeed.placement.graph import Graph, Node


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage's share of a graph.

    Args:
        received: numbers of the values that come from the stage before.
        results: of those that go to the next stage, or back to the caller.
    """

    index: int
    nodes: tuple[Node, ...]
    received: tuple[int, ...]
    results: tuple[int, ...]


def layers_of_stages(num_layers: int, num_stages: int) -> tuple[range, ...]:
    """Return the layers of each stage, as equal in number as can be.

    Stages in the middle take what is over, then the first one: the last one has the head.

    Raises:
        ConfigError: there are more stages than layers.
    """
    if num_stages > num_layers:
        raise ConfigError(
            f"{num_stages} pipeline stages for {num_layers} layers: each stage needs one at least; "
            f"set pp to {num_layers} or less"
        )
    least, over = divmod(num_layers, num_stages)
    larger = [*range(1, num_stages - 1), 0][:over]
    bounds = [0]
    for stage in range(num_stages):
        bounds.append(bounds[-1] + least + (stage in larger))
    return tuple(range(low, high) for low, high in pairwise(bounds))


def cut_into_stages(graph: Graph, num_stages: int) -> tuple[Stage, ...]:
    """Cut a graph at layer bounds; a graph without layers is the last stage's alone."""
    shares = _shares(graph, num_stages)
    repeated = _of_step_inputs(graph)
    stages: list[Stage] = []
    results = graph.outputs
    for index in reversed(range(num_stages)):
        wanted = {*results} | {number for node in shares[index] for number in refs(node)}
        again = _repeat(repeated, wanted, own={*_made(shares[index])})
        nodes = (*again, *shares[index])
        there = {*graph.inputs, *_made(nodes)}
        used = {number for node in nodes for number in refs(node)} | {*results}
        received = tuple(sorted(used - there)) if index and (nodes or results) else ()
        stages.append(Stage(index, nodes, received, tuple(results)))
        results = received
    return tuple(reversed(stages))


def _shares(graph: Graph, num_stages: int) -> list[list[Node]]:
    """Return each stage's nodes: those before the first layer with it, the others with the last."""
    layers = {node.layer for node in graph.nodes if node.layer >= 0}
    shares: list[list[Node]] = [[] for _ in range(num_stages)]
    if not layers:
        shares[-1] = list(graph.nodes)
        return shares
    ranges = layers_of_stages(max(layers) + 1, num_stages)
    stage_of = {layer: index for index, span in enumerate(ranges) for layer in span}
    last = max(index for index, node in enumerate(graph.nodes) if node.layer >= 0)
    current = 0
    for index, node in enumerate(graph.nodes):
        if node.layer >= 0:
            current = stage_of[node.layer]
        shares[current if index <= last else num_stages - 1].append(node)
    return shares


def _of_step_inputs(graph: Graph) -> dict[int, Node]:
    """Return value -> node, of nodes that need no rank's weights and no result of such a node."""
    known = {*graph.inputs}
    found: dict[int, Node] = {}
    for node in graph.nodes:
        if node.layer < 0 and not node.spread and {*refs(node)} <= known:
            known |= {*node.outputs}
            found |= dict.fromkeys(node.outputs, node)
    return found


def _repeat(repeated: dict[int, Node], wanted: set[int], own: set[int]) -> list[Node]:
    """Return the nodes of other stages that are run again for the wanted values, in their order."""
    chosen: dict[int, Node] = {}
    open_values = [number for number in wanted if number in repeated and number not in own]
    while open_values:
        node = repeated[open_values.pop()]
        if node.outputs[0] not in chosen:
            chosen[node.outputs[0]] = node
            open_values += [n for n in refs(node) if n in repeated and n not in own]
    return [chosen[number] for number in sorted(chosen)]


def _made(nodes: Iterable[Node] | Sequence[Node]) -> list[int]:
    return [number for node in nodes for number in node.outputs]
