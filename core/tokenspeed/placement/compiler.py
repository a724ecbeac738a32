"""The compiler: from a traced graph to what each pipeline stage does, over any mesh of ranks.

    stages -> blocks (layers) -> search of the cheapest ways -> instructions -> labels and fusions

The result is equal on all ranks of a stage; `digest` says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.placement.beside import branch_labels
from tokenspeed.placement.blocks import cut_into_blocks
from tokenspeed.placement.cost import ELEMENT_BYTES, local_elements
from tokenspeed.placement.emit import Emitter
from tokenspeed.placement.exchange import Exchanger
from tokenspeed.placement.layout import TOKENS, Layout, Segment, whole
from tokenspeed.placement.moves import Mover
from tokenspeed.placement.program import Passed, Program
from tokenspeed.placement.runs import runs_of
from tokenspeed.placement.search import Search, State, origin_of, outcomes_of
from tokenspeed.placement.stages import cut_into_stages
from tokenspeed.placement.text import digest_of
from tokenspeed.placement.ways import Ways

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenspeed.placement.cost import CostModel
    from tokenspeed.placement.graph import Graph, Value
    from tokenspeed.placement.mesh import Mesh
    from tokenspeed.placement.search import Cost
    from tokenspeed.placement.stages import Stage


def compile_graph(
    graph: Graph,
    mesh: Mesh,
    cost: CostModel,
    tokens: int,
    *,
    whole_results: bool = False,
    exchanges: bool = True,
) -> tuple[Program, ...]:
    """Return the cheapest program of each pipeline stage, the first stage first.

    Inputs are cut over the partitions of data-parallel attention, and so are results.

    Args:
        tokens: of a step, all ranks together, for which the program is the cheapest.
        whole_results: results are whole on every rank, as logits are.
        exchanges: tokens may be sent to the ranks that hold their experts.
    Raises:
        PlacementError: an annotation is wrong, or no layout fits; names module, expected, found.
        ConfigError: there are more stages than layers.
    """
    exchanger = Exchanger(mesh, cost, tokens) if exchanges else None
    compiler = _Compiler(graph, mesh, cost, tokens, exchanger)
    return compiler.programs(whole_results=whole_results)


@dataclass(frozen=True, slots=True)
class _Searched:
    """A stage as it was searched.

    Args:
        entries: the states that it began with, by identity -> (state of the stage before, layouts
            of the values that came).
    """

    stage: Stage
    entries: dict[int, tuple[State, tuple[Layout, ...]]]


class _Compiler:
    def __init__(
        self, graph: Graph, mesh: Mesh, cost: CostModel, tokens: int, exchanger: Exchanger | None
    ) -> None:
        self.graph = graph
        self.mesh = mesh
        self.cost = cost
        self.tokens = tokens
        runs = runs_of(graph, mesh)
        mover = Mover(mesh, cost, tokens, runs=runs)
        self.search = Search(graph.values, mover, Ways(graph.values, mesh, runs, exchanger))
        self.labels = branch_labels(graph)

    def programs(self, *, whole_results: bool) -> tuple[Program, ...]:
        stages = cut_into_stages(self.graph, self.mesh.degrees.pp)
        wanted = tuple(
            whole(value.parts) if whole_results else self._of_partition(value)
            for value in map(self.graph.values.__getitem__, self.graph.outputs)
        )
        searched, state = self._search(stages, wanted)
        chosen = []
        for item in reversed(searched):
            before, layouts = item.entries.get(id(origin_of(state)), (None, ()))
            chosen.append((item.stage, state, layouts))
            if before is not None:
                state = before
        return tuple(self._emit(chosen[::-1], wanted))

    def _of_partition(self, value: Value) -> Layout:
        """Return: the partition's own tokens, whole over all other axes."""
        layout = whole(value.parts)
        axes = self.mesh.groups.get(ParallelGroup.ATTN_DP, ())
        if value.parts[:1] != ((TOKENS,),):
            return layout
        return replace(layout, dims=((Segment(TOKENS, axes),), *layout.dims[1:]))

    def _search(
        self, stages: Sequence[Stage], wanted: tuple[Layout, ...]
    ) -> tuple[list[_Searched], State]:
        """Return the stages and the cheapest last state."""
        searched: list[_Searched] = []
        states, alive = [State((), (0.0, 0.0))], tuple[int, ...]()
        for stage in stages:
            states, entries = self._entries(stage, states, alive)
            searched.append(_Searched(stage, entries))
            given = alive = (*self.graph.inputs, *stage.received)
            for block in cut_into_blocks(stage.nodes, self.graph.values, given, stage.results):
                states, alive = self.search.run(block, states, alive), block.leaving
        return searched, self._best(states, alive, wanted)

    def _entries(
        self, stage: Stage, states: Sequence[State], alive: Sequence[int]
    ) -> tuple[list[State], dict[int, tuple[State, tuple[Layout, ...]]]]:
        """Return the states that a stage may begin with: each value comes in one layout."""
        values, number = self.graph.values, self.search.number
        inputs = tuple((number(self._of_partition(values[item])),) for item in self.graph.inputs)
        begun: list[State] = []
        entries = {}
        for state in states:
            came = [state.available[alive.index(item)] for item in stage.received]
            for chosen in product(*came):
                layouts = tuple(self.search.layouts[item] for item in chosen)
                cost = self._pass_cost(stage.received, layouts)
                total = state.cost[0] + cost[0], state.cost[1] + cost[1]
                begun.append(State((*inputs, *((item,) for item in chosen)), total))
                entries[id(begun[-1])] = state, layouts
        return begun, entries

    def _pass_cost(self, passed: Sequence[int], layouts: Sequence[Layout]) -> Cost:
        if not passed:
            return 0.0, 0.0
        num_bytes = sum(
            local_elements(layout, self.mesh) * ELEMENT_BYTES[self.graph.values[number].dtype]
            for number, layout in zip(passed, layouts, strict=True)
        )
        return self.cost.pass_time_us(num_bytes * self.tokens), num_bytes

    def _best(
        self, states: Sequence[State], alive: Sequence[int], wanted: Sequence[Layout]
    ) -> State:
        """Return the state from which the results are got at the least cost in all."""

        def total(state: State) -> Cost:
            costs = [state.cost]
            for number, layout in zip(self.graph.outputs, wanted, strict=True):
                there = state.available[alive.index(number)]
                costs.append(self.search.cheapest(there, self.search.number(layout), number)[0])
            return sum(cost[0] for cost in costs), sum(cost[1] for cost in costs)

        return min(states, key=total)

    def _emit(
        self, chosen: Sequence[tuple[Stage, State, tuple[Layout, ...]]], wanted: Sequence[Layout]
    ) -> Iterator[Program]:
        emitter = Emitter()
        passed: Passed | None = None
        for index, (stage, state, _) in enumerate(chosen):
            if not stage.nodes:
                yield _program(stage.index, (), (), Emitter())
                continue
            emitter = Emitter(emitter.next_register)
            inputs = tuple(
                emitter.give(number, self._of_partition(self.graph.values[number]))
                for number in self.graph.inputs
            )
            if passed is not None:
                emitter.take_over(stage.received, passed)
            for node, outcome in zip(stage.nodes, outcomes_of(state), strict=True):
                label = self.labels.get(node.outputs[0], "") if node.outputs else ""
                emitter.call(node, outcome, label)
            outputs: tuple[int, ...] = ()
            if index + 1 < len(chosen):
                results = [self.graph.values[number] for number in stage.results]
                passed = emitter.hand_on(results, chosen[index + 1][2], stage.index)
            else:
                outputs = self._results(emitter, wanted)
            yield _program(stage.index, inputs, outputs, emitter)

    def _results(self, emitter: Emitter, wanted: Sequence[Layout]) -> tuple[int, ...]:
        """Write the moves that bring the results into the layouts wanted; returns registers."""
        registers = []
        for number, layout in zip(self.graph.outputs, wanted, strict=True):
            there = tuple(map(self.search.number, emitter.registers[number]))
            path = self.search.cheapest(there, self.search.number(layout), number)[1]
            assert path is not None, "the search found a way to the results"
            registers.append(emitter.bring(number, layout, path))
        return tuple(registers)


def _program(
    stage: int, inputs: tuple[int, ...], outputs: tuple[int, ...], emitter: Emitter
) -> Program:
    instructions = tuple(emitter.instructions)
    return digest_of(Program(stage, inputs, outputs, instructions, emitter.next_register))
