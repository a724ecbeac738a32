"""What exchanging tokens takes: each goes to the ranks that hold its chosen experts, and back.

    all ranks' tokens, every rank its experts    n (n-1)/n of all tokens gathered, sums scattered
    exchanged                                    tokens/rank x other ranks chosen, there and back

How many ranks a token chooses is not known before the step; the estimate is that of choices without
preference: of E experts, E/n on each rank, X are drawn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.placement.blocks import refs
from tokenspeed.placement.cost import ELEMENT_BYTES
from tokenspeed.placement.graph import Ref
from tokenspeed.placement.program import Exchange

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.placement.cost import CostModel
    from tokenspeed.placement.graph import Node, Value
    from tokenspeed.placement.mesh import Mesh
    from tokenspeed.placement.notation import Pattern

CALLS = 3
"""Collectives of an exchange: counts, tokens, results."""


class Exchanger:
    """Says what the exchange of a node's tokens takes.

    Args:
        tokens: of a step, all ranks together.
    """

    def __init__(self, mesh: Mesh, cost: CostModel, tokens: int) -> None:
        self.mesh = mesh
        self.cost = cost
        self.tokens = tokens

    def __call__(self, node: Node, values: Sequence[Value]) -> Exchange | None:
        """Return the exchange of a node; None: it has none, or one rank holds everything."""
        if not node.exchanged or node.exchanged not in node.spread:
            return None
        axes = self.mesh.groups.get(node.spread[node.exchanged], ())
        ranks = self.mesh.size(axes)
        if ranks == 1:
            return None
        sent = sum(_row_bytes(values[number]) for number in refs(node))
        back = sum(_row_bytes(values[number]) for number in node.outputs)
        chosen, experts = _choices(node, values)
        others = (ranks - 1) * share_of_ranks(experts, chosen, ranks)
        num_bytes = others * (sent + back) / ranks
        link = self.cost.link(self.mesh, axes)
        time_us = (CALLS - 1) * link.latency_us + self.cost.host_wait_us
        return Exchange(axes, num_bytes, time_us + link.time_us(num_bytes * self.tokens))


def share_of_ranks(experts: int, chosen: int, ranks: int) -> float:
    """Return how likely a token that chooses so many experts chooses one on a given rank."""
    elsewhere, missed = experts - experts // ranks, 1.0
    for drawn in range(chosen):
        missed *= max(0, elsewhere - drawn) / (experts - drawn)
    return 1.0 - missed


def letter_of_tokens(node: Node) -> str:
    """Return the letter of the tokens that a node's numbers are chosen by."""
    return _counting(node)[1].dims[0].letter


def _choices(node: Node, values: Sequence[Value]) -> tuple[int, int]:
    """Return (numbers that a token has, elements that they count)."""
    place, _ = _counting(node)
    given = node.inputs[place]
    assert isinstance(given, Ref)
    assert node.rule is not None
    (chosen,) = values[given.number].parts[-1]
    held = node.rule.inputs[len(node.inputs) :]
    for pattern, parts in zip(held, node.weights, strict=False):
        for dim, sizes in zip(pattern.dims if pattern else (), parts, strict=True):
            if dim.letter == node.exchanged:
                return chosen, sum(sizes)
    raise AssertionError("a letter that is exchanged is one of a weight")


def _counting(node: Node) -> tuple[int, Pattern]:
    """Return (place, pattern) of the argument whose numbers count the exchanged letter."""
    assert node.rule is not None
    return next(
        (place, pattern)
        for place, pattern in enumerate(node.rule.inputs)
        if pattern is not None and pattern.counted == node.exchanged
    )


def _row_bytes(value: Value) -> float:
    """Return the bytes of one token of a value."""
    elements = 1
    for sizes in value.parts[1:]:
        elements *= sum(sizes)
    return elements * ELEMENT_BYTES[value.dtype]
