"""The search for the cheapest program: through the nodes, keeping every way that can still be best.

A state says in which layouts each living value is available; a copy that was made for one consumer
serves the others. Of two states one is dropped where the other, having paid for the moves to all
that the first has, is not dearer: it can do whatever the first can, later, for no more. So nothing
that could be part of the cheapest program is lost. What is available for nothing, such as a part of
a whole, is not written down.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import compress
from typing import TYPE_CHECKING

from tokenspeed.errors import PlacementError
from tokenspeed.placement.blocks import refs, signature
from tokenspeed.placement.cost import ELEMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

    from tokenspeed.placement.blocks import Block
    from tokenspeed.placement.graph import Node, Value
    from tokenspeed.placement.layout import Layout
    from tokenspeed.placement.moves import Mover, Path
    from tokenspeed.placement.ways import Way, Ways

Available = tuple[int, ...]
"""Numbers of the layouts in which a value is there, in their order."""
Cost = tuple[float, float]
"""Microseconds, and bytes that a rank sends for one token: the second where the first are equal."""
NEVER: Cost = (float("inf"), float("inf"))
ROUNDING = 1e-9
"""Sums of the same times in another order differ by less."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """One way through a node.

    Args:
        way: layouts of its inputs and outputs.
        paths: how each input gets into its layout.
        inputs: layouts in which each input is available afterwards, where it is still needed.
        outputs: of each output.
    """

    way: Way
    paths: tuple[Path, ...]
    inputs: tuple[Available, ...]
    outputs: tuple[Available, ...]
    cost: Cost


@dataclass(frozen=True, slots=True)
class State:
    """What is available at a point of the program, and how it came to that.

    Args:
        available: of each living value, in the order of the block.
        came: the state before and the outcome of the node between; None: where the search began.
    """

    available: tuple[Available, ...]
    cost: Cost
    came: tuple[State, Outcome] | None = None


class Search:
    """Searches blocks over one mesh; remembers nodes and blocks that it has seen.

    Args:
        ways: yields the ways in which a node can be computed.
    """

    def __init__(self, values: Sequence[Value], mover: Mover, ways: Ways) -> None:
        self.values = values
        self.mover = mover
        self.ways = ways
        self.layouts: list[Layout] = []
        self._bytes = [ELEMENT_BYTES[value.dtype] for value in values]
        self._numbers: dict[Layout, int] = {}
        self._moves: dict[tuple[int, int, int], tuple[Cost, Path | None]] = {}
        self._gaps: dict[tuple[Available, Available, int], Cost] = {}
        self._outcomes: dict[Hashable, list[Outcome]] = {}
        self._blocks: dict[Hashable, list[tuple[State, int]]] = {}

    def number(self, layout: Layout) -> int:
        """Return the number of a layout."""
        known = self._numbers.get(layout)
        if known is None:
            known = self._numbers[layout] = len(self.layouts)
            self.layouts.append(layout)
        return known

    def move(self, source: int, target: int, value: int) -> tuple[Cost, Path | None]:
        """Return what it costs to bring a value from one layout into another, and how."""
        element_bytes = self._bytes[value]
        key = source, target, element_bytes
        found = self._moves.get(key)
        if found is None:
            path = self.mover.path(self.layouts[source], self.layouts[target], element_bytes)
            cost = (path.time_us, path.bytes_per_token) if path else NEVER
            found = self._moves[key] = cost, path
        return found

    def cheapest(self, available: Available, target: int, value: int) -> tuple[Cost, Path | None]:
        """Return the cheapest way to a layout from any of the available ones."""
        moves = (self.move(source, target, value) for source in available)
        return min(moves, key=lambda move: move[0])

    def least(self, layouts: Iterable[int], value: int) -> Available:
        """Leave out what the others give for nothing."""
        kept: list[int] = []
        for layout in sorted({*layouts}):
            if any(self.move(other, layout, value)[0] == (0, 0) for other in kept):
                continue
            kept = [other for other in kept if self.move(layout, other, value)[0] != (0, 0)]
            kept.append(layout)
        return tuple(sorted(kept))

    def run(self, block: Block, states: Sequence[State], alive: Sequence[int]) -> list[State]:
        """Return the states after a block, the cheapest first.

        Args:
            alive: numbers of the values that the states speak of, in their order.
        Raises:
            PlacementError: a node cannot be computed from any of the states.
        """
        offset = min(state.cost for state in states)
        places = [alive.index(number) for number in block.entering]
        entries = tuple(
            (
                tuple(state.available[place] for place in places),
                _rounded(_difference(state.cost, offset)),
            )
            for state in states
        )
        key = block.key, entries
        found = self._blocks.get(key)
        if found is None:
            starts = [State(available, cost) for available, cost in entries]
            found = self._blocks[key] = self._run(block, starts)
        return [self._joined(states[entry], entries[entry][1], end) for end, entry in found]

    def _joined(self, before: State, relative: Cost, end: State) -> State:
        """Return the end of a remembered way through a block, behind the state that it began in."""
        outcomes = outcomes_of(end)
        state = before
        for outcome in outcomes:
            state = State((), before.cost, (state, outcome))
        cost = _sum(before.cost, _difference(end.cost, relative))
        return State(end.available, cost, state.came)

    def _run(self, block: Block, starts: list[State]) -> list[tuple[State, int]]:
        states = starts
        alive = block.entering
        for node, after in zip(block.nodes, block.alive, strict=True):
            states = self._through(node, states, alive, after)
            alive = after
        first = {id(start): index for index, start in enumerate(starts)}
        return [(state, first[id(origin_of(state))]) for state in states]

    def _through(
        self, node: Node, states: list[State], alive: tuple[int, ...], after: tuple[int, ...]
    ) -> list[State]:
        """Return the states after a node; those that cannot be part of the best are left out."""
        inputs = refs(node)
        taken = [alive.index(number) for number in inputs]
        sources = [_source(number, node.outputs, inputs, alive) for number in after]
        needed = tuple(number in after for number in inputs)
        sign = signature(node, self.values), needed, tuple(map(inputs.index, inputs))
        best: dict[tuple[Available, ...], State] = {}
        for state in states:
            given = tuple(state.available[place] for place in taken)
            for outcome in self._outcomes_of(node, sign, given, needed):
                rows = outcome.outputs, outcome.inputs, state.available
                available = tuple(rows[row][place] for row, place in sources)
                cost = _sum(state.cost, outcome.cost)
                if available not in best or cost < best[available].cost:
                    best[available] = State(available, cost, (state, outcome))
        if not best:
            raise PlacementError(
                f"{node.target} ({node.where}) cannot be computed: of the layouts that its inputs "
                "can have none fits its placement rule "
                f"{node.rule.text if node.rule else '(a view)'!r}; annotate the modules before it"
            )
        return self._undominated(best.values(), after)

    def _outcomes_of(
        self,
        node: Node,
        sign: Hashable,
        given: tuple[Available, ...],
        needed: tuple[bool, ...],
    ) -> list[Outcome]:
        key = sign, given
        found = self._outcomes.get(key)
        if found is None:
            found = self._outcomes[key] = self._make_outcomes(node, sign, given, needed)
        return found

    def _make_outcomes(
        self,
        node: Node,
        sign: Hashable,
        given: tuple[Available, ...],
        needed: tuple[bool, ...],
    ) -> list[Outcome]:
        """Return the ways through a node that can be part of the best.

        Args:
            needed: of each input, whether anybody takes it later.
        """
        layouts = tuple(tuple(self.layouts[number] for number in item) for item in given)
        outcomes = [
            outcome
            for way in self.ways(node, sign, layouts, needed)
            if (outcome := self._outcome(node, given, way)) is not None
        ]
        kept: list[Outcome] = []
        numbers = (*compress(refs(node), needed), *node.outputs)
        for outcome in sorted(outcomes, key=lambda item: item.cost):
            has = (*compress(outcome.inputs, needed), *outcome.outputs)
            if not any(
                self._reaches(
                    (*compress(other.inputs, needed), *other.outputs),
                    other.cost,
                    has,
                    outcome.cost,
                    numbers,
                )
                for other in kept
            ):
                kept.append(outcome)
        return kept

    def _outcome(self, node: Node, given: tuple[Available, ...], way: Way) -> Outcome | None:
        """Return what a way costs; None: an input cannot get into its layout."""
        there = dict(zip(refs(node), given, strict=True))
        cost, paths = way.cost, []
        for value, layout in zip(refs(node), way.inputs, strict=True):
            step_cost, path = self.cheapest(there[value], self.number(layout), value)
            if path is None:
                return None
            made = [self.number(step.after) for step in path.steps]
            there[value] = self.least((*there[value], *made), value)
            cost = _sum(cost, step_cost)
            paths.append(path)
        inputs = tuple(there[value] for value in refs(node))
        outputs = tuple((self.number(layout),) for layout in way.outputs)
        return Outcome(way, tuple(paths), inputs, outputs, cost)

    def _undominated(self, states: Iterable[State], values: tuple[int, ...]) -> list[State]:
        kept: list[State] = []
        for state in sorted(states, key=lambda item: item.cost):
            if not any(
                self._reaches(other.available, other.cost, state.available, state.cost, values)
                for other in kept
            ):
                kept.append(state)
        return kept

    def _reaches(
        self,
        have: tuple[Available, ...],
        cost: Cost,
        wanted: tuple[Available, ...],
        limit: Cost,
        values: tuple[int, ...],
    ) -> bool:
        """Say whether all of `wanted` can be made from `have` within the limit."""
        time_us, num_bytes = cost
        high = limit[0] + ROUNDING
        for source, targets, value in zip(have, wanted, values, strict=True):
            if source != targets:
                extra = self._gap(source, targets, value)
                time_us += extra[0]
                num_bytes += extra[1]
                if time_us > high:
                    return False
        return time_us < limit[0] - ROUNDING or num_bytes <= limit[1] + ROUNDING

    def _gap(self, have: Available, wanted: Available, value: int) -> Cost:
        """Return what it costs to make all layouts of `wanted`."""
        key = have, wanted, self._bytes[value]
        found = self._gaps.get(key)
        if found is None:
            costs = [self.cheapest(have, target, value)[0] for target in wanted]
            found = sum(cost[0] for cost in costs), sum(cost[1] for cost in costs)
            self._gaps[key] = found
        return found


def _source(
    number: int, outputs: Sequence[int], inputs: Sequence[int], alive: Sequence[int]
) -> tuple[int, int]:
    """Return where a value's layouts stand: (0 outputs, 1 inputs, 2 what lived before; place)."""
    for row, numbers in enumerate((outputs, inputs)):
        if number in numbers:
            return row, len(numbers) - 1 - numbers[::-1].index(number)
    return 2, alive.index(number)


def outcomes_of(state: State) -> list[Outcome]:
    """Return the outcomes that led to a state, the first node's first."""
    outcomes = []
    while state.came is not None:
        state, outcome = state.came
        outcomes.append(outcome)
    return outcomes[::-1]


def origin_of(state: State) -> State:
    """Return the state that a way began in."""
    while state.came is not None:
        state = state.came[0]
    return state


def _sum(one: Cost, other: Cost) -> Cost:
    return one[0] + other[0], one[1] + other[1]


def _difference(one: Cost, other: Cost) -> Cost:
    return one[0] - other[0], one[1] - other[1]


def _rounded(cost: Cost) -> Cost:
    """Return a cost as the memory's key has it: equal sums are equal."""
    return round(cost[0], 6), round(cost[1], 3)
