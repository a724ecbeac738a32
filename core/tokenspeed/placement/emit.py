"""From the ways that the search chose to the straight line of calls and moves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokenspeed.placement.blocks import refs
from tokenspeed.placement.program import Call, Move, Passed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokenspeed.placement.graph import Node, Value
    from tokenspeed.placement.layout import Layout
    from tokenspeed.placement.moves import Path
    from tokenspeed.placement.program import Instruction
    from tokenspeed.placement.search import Outcome


@dataclass(slots=True)
class Emitter:
    """Writes the instructions of one stage.

    Args:
        next_register: the first that is free.
        registers: value -> layout -> register that holds it so.
    """

    next_register: int = 0
    registers: dict[int, dict[Layout, int]] = field(default_factory=dict)
    instructions: list[Instruction] = field(default_factory=list)

    def give(self, value: int, layout: Layout) -> int:
        """Return a new register for a value that is there from the beginning."""
        return self.hold(value, layout, self._new())

    def hold(self, value: int, layout: Layout, register: int) -> int:
        """Note the register of a value; returns it."""
        self.registers.setdefault(value, {})[layout] = register
        return register

    def call(self, node: Node, outcome: Outcome, beside: str) -> None:
        """Write a node, behind the moves that its inputs need."""
        way = outcome.way
        inputs = tuple(
            self.bring(value, layout, path)
            for value, layout, path in zip(refs(node), way.inputs, outcome.paths, strict=True)
        )
        outputs = tuple(map(self.give, node.outputs, way.outputs))
        self.instructions.append(
            Call(
                node,
                inputs,
                outputs,
                way.inputs,
                way.outputs,
                way.weights,
                beside,
                way.exchange,
            )
        )

    def bring(self, value: int, layout: Layout, path: Path) -> int:
        """Write the moves of a path that are still to be made; returns the register at its end."""
        there = self.registers[value]
        todo = []
        for step in reversed(path.steps):
            if step.after in there:
                break
            todo.append(step)
        for step in reversed(todo):
            source, target = there[step.before], self._new()
            there[step.after] = target
            self.instructions.append(
                Move(
                    step.collective,
                    source,
                    target,
                    step.axes,
                    step.dim,
                    step.segment,
                    step.before,
                    step.after,
                    step.bytes_per_token,
                )
            )
        return there[layout]

    def hand_on(self, values: Sequence[Value], layouts: Sequence[Layout], stage: int) -> Passed:
        """Write that values go to the next stage."""
        registers = tuple(
            self.registers[value.number][layout]
            for value, layout in zip(values, layouts, strict=True)
        )
        dtypes = tuple(value.dtype for value in values)
        passed = Passed(registers, tuple(layouts), dtypes, stage)
        self.instructions.append(passed)
        return passed

    def take_over(self, values: Iterable[int], passed: Passed) -> None:
        """Write that values come from the stage before."""
        for value, layout, register in zip(values, passed.layouts, passed.registers, strict=True):
            self.hold(value, layout, register)
        self.instructions.append(passed)

    def _new(self) -> int:
        self.next_register += 1
        return self.next_register - 1
