"""Numbers of ranks that a model can be spread over, for an error about one that it cannot."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING

from tokenspeed.errors import ConfigError, PlacementError
from tokenspeed.placement.compiler import compile_graph
from tokenspeed.placement.mesh import Degrees, build_mesh

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokenspeed.placement.cost import CostModel
    from tokenspeed.placement.trace import Graphs

TRIED = (*range(1, 17), 32, 64)
"""Numbers that are tried for each degree."""


def check_experts(degrees: Degrees, experts: Sequence[object]) -> None:
    """Check that there is something for ranks of `ep` to divide.

    Raises:
        ConfigError: the model has no experts: such ranks would compute the same, all of them.
    """
    if degrees.ep > 1 and not experts:
        raise ConfigError(
            f"ep is {degrees.ep} and the model has no experts; for such a model ep is 1: leave it "
            "out, and spread the model by tp, cp or pp"
        )


@contextmanager
def fitting_told(
    roomy: Callable[[], Graphs], degrees: Degrees, cost: CostModel, tokens: int
) -> Iterator[None]:
    """Add to a placement error the numbers of ranks that work, where another number helps.

    Args:
        roomy: traces the model with a vocabulary that any of the numbers divides: it is padded.
    Raises:
        PlacementError: what was raised inside, with each degree that could be another.
    """
    try:
        yield
    except PlacementError as error:
        graphs = roomy()
        if not _fits(graphs, Degrees(), cost, tokens):
            raise  # the model's text is wrong, whatever the ranks are
        given = ", ".join(f"{name} {value}" for name, value in _asked(degrees))
        numbers = list(_numbers(graphs, degrees, cost, tokens))
        advice = "; or ".join(numbers) or "none that changes one of them alone"
        raise PlacementError(
            f"the model cannot be spread over {given}: {error}; numbers up to {TRIED[-1]} that "
            f"work, the others as given: {advice}"
        ) from error


def _numbers(graphs: Graphs, degrees: Degrees, cost: CostModel, tokens: int) -> Iterator[str]:
    """Yield, of each degree that was asked for, the numbers that it can be instead."""
    for name, value in _asked(degrees):
        others = [number for number in TRIED if number != value]
        found = [n for n in others if _fits(graphs, replace(degrees, **{name: n}), cost, tokens)]
        if found:
            yield f"{name} {', '.join(map(str, found))}"


def _asked(degrees: Degrees) -> list[tuple[str, int]]:
    pairs = [(item.name, getattr(degrees, item.name)) for item in fields(degrees)]
    return [(name, value) for name, value in pairs if value > 1]


def _fits(graphs: Graphs, degrees: Degrees, cost: CostModel, tokens: int) -> bool:
    try:
        mesh = build_mesh(degrees)
        for graph in (graphs.forward, graphs.logits):
            compile_graph(graph, mesh, cost, tokens)
    except (PlacementError, ConfigError):
        return False
    return True
