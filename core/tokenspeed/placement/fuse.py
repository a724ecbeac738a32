"""Fusions: calls that a communicator does together with a collective.

A pass of its own behind the search: the program computes the same with it and without it.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from tokenspeed.placement.program import Call, Collective, Move, Passed, Reduced
from tokenspeed.placement.text import digest_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from tokenspeed.placement.program import Instruction, Program

FEATURE = "all_reduce_add_rms_norm"
"""Of a communicator that sums over ranks, adds the residual stream and normalises in one call."""
OPERATOR = "norm.add_rms"


def fuse(program: Program, features_over: Callable[[tuple[str, ...]], Iterable[str]]) -> Program:
    """Return the program with what its communicators do in one call.

    Ranks of a group have one choice of a communicator, so they fuse alike.

    Args:
        features_over: axes to the features of the communicator of the ranks that differ in them.
    """
    uses = Counter(number for item in program.instructions for number in _taken(item))
    uses.update(program.outputs)
    sums = {
        item.target: item
        for item in program.instructions
        if isinstance(item, Move) and _is_sum(item) and uses[item.target] == 1
    }
    fused = {
        item.inputs[0]: item
        for item in program.instructions
        if isinstance(item, Call) and _is_add_norm(item) and item.inputs[0] in sums
    }
    able = {axes: FEATURE in features_over(axes) for axes in _axes_of(sums[n] for n in fused)}
    fused = {number: item for number, item in fused.items() if able[sums[number].axes]}
    if not fused:
        return program
    lines = tuple(_written(program, {number: sums[number] for number in fused}))
    return digest_of(replace(program, instructions=lines))


def _written(program: Program, fused: dict[int, Move]) -> Iterator[Instruction]:
    for item in program.instructions:
        if isinstance(item, Call) and _is_add_norm(item) and item.inputs[0] in fused:
            yield Reduced(fused[item.inputs[0]], item)
        elif not (isinstance(item, Move) and item.target in fused):
            yield item


def _axes_of(moves: Iterable[Move]) -> list[tuple[str, ...]]:
    """Return the axes of moves, each once, in an order that all ranks share."""
    return list(dict.fromkeys(move.axes for move in moves))


def _is_sum(move: Move) -> bool:
    return move.collective is Collective.ALL_REDUCE and not move.after.partial


def _is_add_norm(call: Call) -> bool:
    """Say whether a call adds to the residual stream, which another value is, and normalises."""
    operator = call.node.operator
    return operator is not None and operator.name == OPERATOR and len({*call.inputs}) > 1


def _taken(item: Instruction) -> tuple[int, ...]:
    """Return the registers that an instruction reads."""
    match item:
        case Call():
            return item.inputs
        case Move():
            return (item.source,)
        case Reduced():
            return (item.move.source, *item.call.inputs[1:])
        case Passed():
            return item.registers
