"""Where a forward is cut so that what lies between can be a graph for any mix of rows.

A call that takes the step's context reads what the host planned, such as lengths or rows of states:
it is called anew in every step. What lies between depends on nothing but the number of tokens:

    embed, norm, qkv, rotate | attend | o_proj, add-norm, mlp, add-norm, qkv, rotate | attend | ...
    `------- piece -------'    called   `------------------- piece ---------------'    called
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.placement.graph import Kind, StepArgument
from tokenspeed.placement.layout import TOKENS
from tokenspeed.placement.program import Call

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.placement.layout import Layout
    from tokenspeed.placement.program import Instruction, Program

MIN_CALLS = 3
"""Calls that launch something, below which a piece is not worth the copies at its ends."""


@dataclass(frozen=True, slots=True)
class Part:
    """A run of instructions [start, stop) of a program of one rank.

    Args:
        is_piece: it can be a graph.
        reads: registers that were made before it.
        writes: registers that it makes and something behind it reads.
    """

    start: int
    stop: int
    is_piece: bool
    reads: tuple[int, ...]
    writes: tuple[int, ...]


def cut(program: Program) -> tuple[Part, ...]:
    """Return the parts of a program, in their order; pieces and called parts take turns."""
    instructions = program.instructions
    token_major = _token_major(program)
    parts: list[Part] = []
    start = 0
    while start < len(instructions):
        stop = start + 1
        is_free = _is_free(instructions[start])
        while stop < len(instructions) and _is_free(instructions[stop]) == is_free:
            stop += 1
        reads, writes = _ends(program, start, stop)
        is_piece = is_free and _num_launching(instructions[start:stop]) >= MIN_CALLS
        is_piece = is_piece and token_major.issuperset((*reads, *writes))
        parts.append(Part(start, stop, is_piece, reads, writes))
        start = stop
    return tuple(parts)


def _is_free(instruction: Instruction) -> bool:
    """Say whether an instruction takes tensors alone, of this rank alone."""
    if not isinstance(instruction, Call) or instruction.exchange is not None:
        return False
    return not any(isinstance(given, StepArgument) for given in instruction.node.inputs)


def _num_launching(instructions: Sequence[Instruction]) -> int:
    return sum(isinstance(item, Call) and item.node.kind is not Kind.VIEW for item in instructions)


def _ends(program: Program, start: int, stop: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what a run reads from before it, and what of it is read behind it."""
    made: dict[int, None] = {}
    reads: dict[int, None] = {}
    for item in program.instructions[start:stop]:
        reads |= dict.fromkeys(register for register in _inputs(item) if register not in made)
        made |= dict.fromkeys(_outputs(item))
    wanted = set(program.outputs)
    for item in program.instructions[stop:]:
        wanted.update(_inputs(item))
    return tuple(reads), tuple(register for register in made if register in wanted)


def _token_major(program: Program) -> set[int]:
    """Return the registers whose first dimension, and no other, counts tokens."""
    found = set(program.inputs)
    for item in program.instructions:
        if isinstance(item, Call):
            pairs = zip(item.outputs, item.output_layouts, strict=True)
            found.update(register for register, layout in pairs if _counts_tokens_first(layout))
    return found


def _counts_tokens_first(layout: Layout) -> bool:
    counted = [dim[0].size == TOKENS for dim in layout.dims]
    return bool(counted) and counted[0] and not any(counted[1:])


def _inputs(item: Instruction) -> tuple[int, ...]:
    return item.inputs if isinstance(item, Call) else ()


def _outputs(item: Instruction) -> tuple[int, ...]:
    return item.outputs if isinstance(item, Call) else ()
