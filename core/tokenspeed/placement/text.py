"""Programs as text: what a digest covers and what people read."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from typing import TYPE_CHECKING

from tokenspeed.placement.layout import TOKENS
from tokenspeed.placement.program import Call, Move, Passed, Reduced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.placement.graph import Node
    from tokenspeed.placement.layout import Dim, Layout
    from tokenspeed.placement.program import Instruction, Program


def layout_text(layout: Layout) -> str:
    """Return a layout such as "(T/a, [64/ab | 8/a], 128) sum b"."""
    dims = ", ".join(map(_dim_text, layout.dims))
    partial = "".join(sorted(layout.partial))
    return f"({dims})" + (f" sum {partial}" if partial else "")


def _dim_text(dim: Dim) -> str:
    parts = [
        ("T" if segment.size == TOKENS else str(segment.size))
        + (f"/{''.join(segment.axes)}" if segment.axes else "")
        for segment in dim
    ]
    return parts[0] if len(parts) == 1 else f"[{' | '.join(parts)}]"


def instruction_text(instruction: Instruction) -> str:
    """Return one line that says all that ranks must agree on."""
    match instruction:
        case Call():
            return _call_text(instruction)
        case Move():
            return _move_text(instruction)
        case Reduced():
            return f"fused {_move_text(instruction.move)} {_call_text(instruction.call)}"
        case Passed():
            return (
                f"pass {_named(instruction.registers, instruction.layouts)} from stage "
                f"{instruction.stage}"
            )


def digest_of(program: Program) -> Program:
    """Return the program with its digest: of all that ranks of a stage must agree on."""
    lines = [
        f"stage {program.stage} inputs {program.inputs} outputs {program.outputs} "
        f"registers {program.num_registers}",
        *map(instruction_text, program.instructions),
    ]
    return replace(program, digest=sha256("\n".join(lines).encode()).hexdigest())


def _call_text(call: Call) -> str:
    weights = " ".join(map(layout_text, call.weight_layouts))
    return (
        f"{_named(call.outputs, call.output_layouts)} = {node_text(call.node)} "
        f"{_named(call.inputs, call.input_layouts)} weights {weights} beside {call.beside!r}"
        + (f" exchanged over {''.join(call.exchange.axes)}" if call.exchange else "")
    )


def _move_text(move: Move) -> str:
    return (
        f"r{move.target} {layout_text(move.after)} = {move.collective.value} over "
        f"{''.join(move.axes)} of r{move.source} {layout_text(move.before)} "
        f"dim {move.dim} segment {move.segment}"
    )


def node_text(node: Node) -> str:
    """Return what a node calls, and with which constants."""
    rule = node.rule.text if node.rule else ""
    constants = [repr(item) for item in node.inputs] + [
        f"{name}={value!r}" for name, value in sorted(node.options.items())
    ]
    return f"{node.kind.value} {node.target}({', '.join(constants)}) {rule!r}"


def _named(registers: Sequence[int], layouts: Sequence[Layout]) -> str:
    pairs = zip(registers, layouts, strict=True)
    return ", ".join(f"r{register} {layout_text(layout)}" for register, layout in pairs)
