"""Programs: what one rank does in a step, a straight line of calls and collectives.

The same on every rank of a stage but for the numbers of its peers; `digest` says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenspeed.placement.graph import Node
    from tokenspeed.placement.layout import Layout


class Collective(Enum):
    """How a layout becomes another."""

    ALL_REDUCE = "all_reduce"
    """Summands to the sum on every rank."""
    REDUCE_SCATTER = "reduce_scatter"
    """Summands to cut parts of the sum."""
    ALL_GATHER = "all_gather"
    """Cut parts to the whole on every rank."""
    SLICE = "slice"
    """The whole to cut parts: no traffic."""
    FIRST = "first"
    """The whole to summands: the first rank keeps it, the others have zeros; no traffic."""


@dataclass(frozen=True, slots=True)
class Move:
    """A change of one value's layout over one run of axes.

    Args:
        source, target: registers.
        axes: over which, the slowest first: the ranks that take part differ in these.
        dim, segment: what is cut or joined; 0 and 0 for summands that become a sum.
        before, after: layouts.
        bytes_per_token: what one rank sends for one token, as the cost model counts it.
    """

    collective: Collective
    source: int
    target: int
    axes: tuple[str, ...]
    dim: int
    segment: int
    before: Layout
    after: Layout
    bytes_per_token: float = 0.0


@dataclass(frozen=True, slots=True)
class Exchange:
    """Tokens go to the ranks that hold what they chose, and the results come back.

    Args:
        axes: over which, the slowest first; inputs and results are cut over them.
        bytes_per_token: what one rank sends for one token of the step, there and back.
        time_us: in a step of the compiler's tokens.
    """

    axes: tuple[str, ...]
    bytes_per_token: float
    time_us: float


@dataclass(frozen=True, slots=True)
class Call:
    """A node of the graph on local sizes.

    Args:
        inputs: register of each Ref among the node's inputs, in their order.
        outputs: registers.
        input_layouts, output_layouts: of those.
        weight_layouts: of the node's weights.
        beside: label of the branch that may run beside others of the layer; "": none.
        exchange: tokens are exchanged around it; None: they are not.
    """

    node: Node
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    input_layouts: tuple[Layout, ...]
    output_layouts: tuple[Layout, ...]
    weight_layouts: tuple[Layout, ...] = ()
    beside: str = ""
    exchange: Exchange | None = None


@dataclass(frozen=True, slots=True)
class Reduced:
    """An all-reduce, a residual sum and a norm in one call (`all_reduce_add_rms_norm`).

    Args:
        move: the all-reduce that is part of it.
        call: the node of the norm.
    """

    move: Move
    call: Call


@dataclass(frozen=True, slots=True)
class Passed:
    """Values that go from one pipeline stage to the next.

    Args:
        registers: in their order; the receiver's are the same numbers.
        layouts: of the values.
        dtypes: torch's names, of the values.
        stage: that sends; the next one receives.
    """

    registers: tuple[int, ...]
    layouts: tuple[Layout, ...]
    dtypes: tuple[str, ...]
    stage: int


Instruction = Call | Move | Reduced | Passed


@dataclass(frozen=True, slots=True)
class Program:
    """One stage's part of a graph.

    Args:
        stage: of the pipeline.
        inputs: registers of the graph's inputs.
        outputs: registers of the graph's results, empty but in the last stage.
        instructions: in the order in which they run.
        num_registers: how many there are.
        digest: of everything that must be equal on all ranks, hexadecimal.
    """

    stage: int
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    instructions: tuple[Instruction, ...]
    num_registers: int
    digest: str = ""
