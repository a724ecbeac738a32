"""Blocks: the runs of a graph's nodes that belong to one decoder layer.

Equal layers are equal blocks but for the numbers of their values; `Block.key` says so, and the
search then answers from memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any

from tokenspeed.placement.graph import Kind, Ref

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Sequence

    from tokenspeed.placement.graph import Node, Value


@dataclass(frozen=True, slots=True)
class Block:
    """A run of nodes with what is alive around them.

    Args:
        layer: that the nodes are part of; -1: none.
        entering: numbers of the values that are alive before it, in an order that equal blocks
            share.
        alive: after each node, the values that are still needed, in such an order.
        key: equal for equal blocks.
    """

    nodes: tuple[Node, ...]
    layer: int
    entering: tuple[int, ...]
    alive: tuple[tuple[int, ...], ...]
    key: Hashable

    @property
    def leaving(self) -> tuple[int, ...]:
        """Values that are alive after it."""
        return self.alive[-1]


def refs(node: Node) -> tuple[int, ...]:
    """Return the numbers of the values among a node's inputs."""
    return tuple(item.number for item in node.inputs if isinstance(item, Ref))


def signature(node: Node, values: Sequence[Value]) -> Hashable:
    """Return what decides how layouts go through a node, whichever values they are."""
    constants = tuple(None if isinstance(item, Ref) else repr(item) for item in node.inputs)
    sizes = tuple((values[number].parts, values[number].dtype) for number in refs(node))
    made = tuple((values[number].parts, values[number].dtype) for number in node.outputs)
    target = node.target if node.kind is Kind.VIEW else ""
    rule = node.rule.text if node.rule else ""
    spread = tuple(sorted((letter, group.value) for letter, group in node.spread.items()))
    units = tuple(sorted(node.units.items()))
    options = repr(sorted(node.options.items()))
    known = node.kind, target, rule, constants, sizes, made, node.weights, spread, units, options
    return *known, node.exchanged


def cut_into_blocks(
    nodes: Iterable[Node], values: Sequence[Value], given: Iterable[int], results: Iterable[int]
) -> Iterator[Block]:
    """Yield the blocks of a stage.

    Args:
        given: numbers of the values that are there before the first node.
        results: numbers of those that are needed after the last one.
    """
    nodes = tuple(nodes)
    last_use = {number: index for index, node in enumerate(nodes) for number in refs(node)}
    last_use |= dict.fromkeys(results, len(nodes))
    entering = tuple(number for number in given if number in last_use)
    first = 0
    for layer, run in groupby(nodes, key=lambda node: node.layer):
        block = _block(tuple(run), values, entering, last_use, first, layer)
        yield block
        entering, first = block.leaving, first + len(block.nodes)


def _block(
    nodes: tuple[Node, ...],
    values: Sequence[Value],
    entering: tuple[int, ...],
    last_use: dict[int, int],
    first: int,
    layer: int,
) -> Block:
    places: dict[int, int] = {}
    for number in (number for node in nodes for number in refs(node)):
        if number in entering:
            places.setdefault(number, len(places))
    for number in entering:
        places.setdefault(number, len(places))
    ordered = tuple(places)
    alive, live = [], list(ordered)
    keys: list[Any] = [tuple((values[number].parts, values[number].dtype) for number in ordered)]
    for index, node in enumerate(nodes, first):
        for number in node.outputs:
            places[number] = len(places)
            live.append(number)
        live = [number for number in live if last_use.get(number, -1) > index]
        alive.append(tuple(live))
        inner = tuple(places[number] for number in refs(node))
        keys.append((signature(node, values), inner, tuple(places[number] for number in live)))
    return Block(nodes, layer, ordered, tuple(alive), tuple(keys))
