"""The graph: a forward pass as it was traced, before anything is known of ranks.

Sizes are those of all ranks together. Every node is an operator, a module with weights or a cache
(which names an operator's rule), or a view; the order is that of the calls.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.kernel import Operator
    from tokenspeed.contracts.placement import ParallelGroup
    from tokenspeed.placement.notation import Rule


class Kind(Enum):
    """What a node does."""

    OPERATOR = "operator"
    """Calls a bound operator on activations."""
    MODULE = "module"
    """Calls a layer that holds weights, a backend or a cache."""
    VIEW = "view"
    """Looks at a tensor in another shape, cuts it or joins several."""


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor of the graph.

    Args:
        number: its place in the graph's values.
        parts: sizes of the segments of each dimension, or TOKENS.
        dtype: torch's name.
        name: for people, such as "layers.3.self_attn.qkv".
    """

    number: int
    parts: tuple[tuple[int, ...], ...]
    dtype: str
    name: str


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is a value of the graph."""

    number: int


@dataclass(frozen=True, slots=True)
class StepArgument:
    """An argument that is the step's ForwardContext: every rank passes its own."""


@dataclass(frozen=True, slots=True)
class Node:
    """One call.

    Args:
        kind: what it does.
        target: operator's name; path of the module in the model; name of the view.
        inputs: Ref, StepArgument or a constant each.
        outputs: numbers of the values that it makes.
        options: keyword arguments: constants.
        rule: how layouts go through it; None for views.
        weights: sizes of the weights that follow the inputs in the rule, as `Value.parts`.
        spread: letter -> group, as the module's annotation says.
        units: letter -> how many equal units each of its segments has, such as heads: a unit is
            never cut. A segment behind the first that has too few for its group is cut over the
            first axes of the group, as far as it goes, and shared over the others.
        operator: of kind OPERATOR, bound with `traits`; of a module that calls one and no more.
        layer: index of the decoder layer that it is part of; -1: none.
        where: file:line of the call in the model's text.
        exchanged: letter whose parts tokens may be sent to; "": none (`exchange.py`).
    """

    kind: Kind
    target: str
    inputs: tuple[Any, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    rule: Rule | None = None
    weights: tuple[tuple[tuple[int, ...], ...], ...] = ()
    spread: Mapping[str, ParallelGroup] = field(default_factory=dict)
    units: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    operator: Operator | None = None
    traits: Mapping[str, object] = field(default_factory=dict)
    layer: int = -1
    where: str = ""
    exchanged: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """A traced call of a model.

    Args:
        inputs: numbers of the values that the caller gives: token ids, positions; or hidden states.
        outputs: numbers of the values that the call returns.
    """

    values: tuple[Value, ...]
    nodes: tuple[Node, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
