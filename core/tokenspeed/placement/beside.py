"""Which calls may run beside one another: branches between a fork and a join.

    x -+- router, experts ------ join          the shared expert may run while tokens are on their
       `- shared expert --------'              way to the experts and back

A branch is worth a label where it has a product with weights; the label is that of its last module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.placement.blocks import refs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.placement.graph import Graph, Node


def branch_labels(graph: Graph) -> dict[int, str]:
    """Return first output of a node -> label of its branch."""
    makers = {number: node for node in graph.nodes for number in node.outputs}
    labels: dict[int, str] = {}
    for node in graph.nodes:
        joined = dict.fromkeys(refs(node)) if len(node.inputs) > 1 else ()
        sides = [_upstream(number, node.layer, makers) for number in joined]
        for side in sides:
            shared = {number for other in sides if other is not side for number in other}
            own = {number: maker for number, maker in side.items() if number not in shared}
            rest = [other for other in sides if other is not side and _is_worth(other, side)]
            if rest and _is_worth(own, {}):
                label = next(reversed(own.values())).target
                for number in own:
                    labels.setdefault(number, label)
    return labels


def _upstream(number: int, layer: int, makers: Mapping[int, Node]) -> dict[int, Node]:
    """Return first output -> node, in order, of what a value is made of within its layer."""
    found: dict[int, Node] = {}
    todo = [number]
    while todo:
        node = makers.get(todo.pop())
        if node is not None and node.layer == layer and node.outputs[0] not in found:
            found[node.outputs[0]] = node
            todo += refs(node)
    return dict(sorted(found.items()))


def _is_worth(branch: Mapping[int, Node], but: Mapping[int, Node]) -> bool:
    """Say whether a branch multiplies with a matrix."""
    return any(
        len(weight) > 1
        for number, node in branch.items()
        if number not in but
        for weight in node.weights
    )
