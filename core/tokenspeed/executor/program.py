"""Runs a compiled program: one rank's straight line of calls and moves over registers.

Everything is looked up once; a step goes through a list of closures and lets a register go behind
its last reader.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.executor.exchange import exchanging
from tokenspeed.executor.moving import change_of
from tokenspeed.executor.token_counts import TokenCounts
from tokenspeed.placement.graph import Kind, Ref, StepArgument
from tokenspeed.placement.layout import TOKENS
from tokenspeed.placement.program import Call, Move, Passed, Reduced
from tokenspeed.placement.views import local_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.contracts.kernel import KernelBinder
    from tokenspeed.placement.graph import Node
    from tokenspeed.placement.mesh import Mesh
    from tokenspeed.placement.program import Instruction, Program

    Registers = list[Any]
    Step = Callable[[Registers, Any, TokenCounts], None]


GIVES_SEVERAL = frozenset({"split_with_sizes", "unbind"})
"""Views whose result is a row of tensors, if only of one."""


class Connections(Protocol):
    """Finds the communicators of one rank; the same object for the same ranks."""

    def over(self, axes: tuple[str, ...]) -> Communicator:
        """Return that of the ranks of this stage that differ in these axes, by their places."""
        ...

    def between(self, stage: int) -> Communicator:
        """Return that of two ranks with one place in a stage (rank 0 of it) and in the next."""
        ...


class NormLayer(Protocol):
    """A layer that adds to the residual stream and normalises: what a fused call needs of it."""

    @property
    def weight(self) -> torch.Tensor: ...
    @property
    def eps(self) -> float: ...


class ProgramRunner:
    """One rank's program.

    Args:
        module_at: finds a layer of this rank's model by its path; weights may come later.
        kernels: binds the operators that are called on activations.
    """

    def __init__(
        self,
        program: Program,
        *,
        mesh: Mesh,
        rank: int,
        module_at: Callable[[str], Callable[..., Any]],
        kernels: KernelBinder,
        connections: Connections,
    ) -> None:
        self.program = self._program = program
        self._mesh = mesh
        self._rank = rank
        self._module_at = module_at
        self._kernels = kernels
        self._connections = connections
        self._num_partitions = mesh.size(mesh.groups[ParallelGroup.ATTN_DP])
        last_reads = _last_reads(program)
        self._steps = [
            (self._step_of(index, instruction, last_reads), last_reads.get(index, ()))
            for index, instruction in enumerate(program.instructions)
        ]

    def run(
        self, *inputs: torch.Tensor, context: Any = None, partition_tokens: Sequence[int] = ()
    ) -> tuple[Any, ...]:
        """Run one step.

        Args:
            inputs: of the graph, on local sizes.
            context: what modules get for the step.
            partition_tokens: see ForwardContext; empty: this rank's alone.
        Returns:
            The graph's results; None each where the stage is not the last.
        """
        counts = (
            TokenCounts(self._mesh, partition_tokens)
            if partition_tokens
            else self.counts(len(inputs[0]))
        )
        registers = self.registers(*inputs)
        self.run_part(0, len(self._steps), registers, context, counts)
        return tuple(registers[register] for register in self._program.outputs)

    def registers(self, *inputs: torch.Tensor) -> Registers:
        """Return the registers of a step; without inputs, of a part of one."""
        registers: Registers = [None] * self._program.num_registers
        for register, value in zip(self._program.inputs, inputs, strict=False):
            registers[register] = value
        return registers

    def run_part(
        self, start: int, stop: int, registers: Registers, context: Any, counts: TokenCounts
    ) -> None:
        """Run the instructions [start, stop) on what those before them left."""
        for step, dead in self._steps[start:stop]:
            step(registers, context, counts)
            for register in dead:
                registers[register] = None

    def counts(self, num_tokens: int) -> TokenCounts:
        """Return those of a step of this rank's tokens alone."""
        return TokenCounts(self._mesh, (num_tokens,) * self._num_partitions)

    def _step_of(
        self, index: int, instruction: Instruction, last_reads: Mapping[int, tuple[int, ...]]
    ) -> Step:
        match instruction:
            case Call():
                return self._call(instruction)
            case Move():
                may_overwrite = self._may_overwrite(index, instruction.source, last_reads)
                return self._move(instruction, may_overwrite=may_overwrite)
            case Reduced():
                may_overwrite = self._may_overwrite(index, instruction.move.source, last_reads)
                return self._reduced(instruction, may_overwrite=may_overwrite)
            case Passed():
                return self._passed(instruction)

    def _call(self, call: Call) -> Step:
        compute = self._target(call)
        node = call.node
        if node.kind is Kind.VIEW:
            constants = local_arguments(node, call.input_layouts, self._mesh)
            arguments: list[object] = [*(Ref(register) for register in call.inputs), *constants]
        else:
            registers = iter(call.inputs)
            arguments = [
                Ref(next(registers)) if isinstance(given, Ref) else given for given in node.inputs
            ]
        gather = _gatherer(arguments)
        options = dict(node.options)
        if len(call.outputs) == 1 and node.target not in GIVES_SEVERAL:
            (output,) = call.outputs

            def step_one(registers: Registers, context: Any, counts: TokenCounts) -> None:
                registers[output] = compute(*gather(registers, context), **options)

            return step_one
        outputs = call.outputs

        def step(registers: Registers, context: Any, counts: TokenCounts) -> None:
            results = compute(*gather(registers, context), **options)
            for output, result in zip(outputs, results, strict=True):
                registers[output] = result

        return step

    def _target(self, call: Call) -> Callable[..., Any]:
        node = call.node
        if node.kind is Kind.VIEW:
            return _view_of(node, len(call.inputs))
        if node.kind is Kind.MODULE:
            module: Any = self._module_at(node.target)
            if call.exchange is None:
                return module  # type: ignore[no-any-return]
            return exchanging(module, self._connections.over(call.exchange.axes))
        assert node.operator is not None
        bound: Callable[..., Any] = self._kernels.bind(node.operator, **node.traits)
        return bound

    def _move(self, move: Move, *, may_overwrite: bool) -> Step:
        communicator = self._connections.over(move.axes)
        change = change_of(move, self._mesh, self._rank, communicator)
        source, target = move.source, move.target

        def step(registers: Registers, context: Any, counts: TokenCounts) -> None:
            x = registers[source]
            registers[target] = change(x if may_overwrite else x.clone(), counts)

        return step

    def _reduced(self, reduced: Reduced, *, may_overwrite: bool) -> Step:
        communicator: Any = self._connections.over(reduced.move.axes)
        add: Any = self._module_at(reduced.call.node.target)
        norm: NormLayer = add.__self__
        fused = communicator.all_reduce_add_rms_norm
        source = reduced.move.source
        residual = reduced.call.inputs[1]
        normed, total = reduced.call.outputs

        def step(registers: Registers, context: Any, counts: TokenCounts) -> None:
            x = registers[source]
            registers[normed], registers[total] = fused(
                x if may_overwrite else x.clone(), registers[residual], norm.weight, eps=norm.eps
            )

        return step

    def _passed(self, passed: Passed) -> Step:
        communicator = self._connections.between(passed.stage)
        if self._program.stage == passed.stage:

            def send(registers: Registers, context: Any, counts: TokenCounts) -> None:
                for register in passed.registers:
                    communicator.broadcast(registers[register].contiguous(), root=0)

            return send

        def receive(registers: Registers, context: Any, counts: TokenCounts) -> None:
            device = registers[self._program.inputs[0]].device
            for register, layout, dtype in zip(
                passed.registers, passed.layouts, passed.dtypes, strict=True
            ):
                shape = [
                    counts.local(dim[0].axes, self._rank) if size == TOKENS else size
                    for dim, size in zip(layout.dims, layout.local_shape(self._mesh), strict=True)
                ]
                empty = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
                registers[register] = communicator.broadcast(empty, root=0)

        return receive

    def _may_overwrite(
        self, index: int, register: int, last_reads: Mapping[int, tuple[int, ...]]
    ) -> bool:
        """Say whether nobody reads a tensor any more, under this or another name."""
        if register not in last_reads.get(index, ()):
            return False
        for instruction in self._program.instructions:
            if isinstance(instruction, Call) and instruction.node.kind is Kind.VIEW:
                if register in (*instruction.inputs, *instruction.outputs):
                    return False
            elif isinstance(instruction, Passed) and register in instruction.registers:
                return False
        return register not in self._program.inputs


def _gatherer(arguments: Sequence[object]) -> Callable[[Registers, Any], list[Any]]:
    """Return what collects a call's arguments."""
    places = [
        (place, given.number) for place, given in enumerate(arguments) if isinstance(given, Ref)
    ]
    steps = [place for place, given in enumerate(arguments) if isinstance(given, StepArgument)]
    template = [None if isinstance(given, Ref | StepArgument) else given for given in arguments]

    def gather(registers: Registers, context: Any) -> list[Any]:
        filled = template.copy()
        for place, register in places:
            filled[place] = registers[register]
        for place in steps:
            filled[place] = context
        return filled

    return gather


def _view_of(node: Node, num_tensors: int) -> Callable[..., Any]:
    """Return a view as a function of its tensors and its constants."""
    match node.target:
        case "cat":
            return lambda *given: torch.cat(given[:num_tensors], *given[num_tensors:])
        case "getitem":
            return lambda x, index: x[index]
        case "mT":
            return lambda x: x.mT
        case name:
            return lambda x, *constants: getattr(x, name)(*constants)


def _reads(instruction: Instruction) -> tuple[int, ...]:
    match instruction:
        case Call():
            return instruction.inputs
        case Move():
            return (instruction.source,)
        case Reduced():
            return (instruction.move.source, *instruction.call.inputs)
        case Passed():
            return instruction.registers


def _last_reads(program: Program) -> dict[int, tuple[int, ...]]:
    """Return the registers that nothing reads behind each instruction."""
    last: dict[int, int] = {}
    for index, instruction in enumerate(program.instructions):
        last |= dict.fromkeys(_reads(instruction), index)
    dead: dict[int, tuple[int, ...]] = {}
    for register, index in last.items():
        if register not in program.outputs:
            dead[index] = (*dead.get(index, ()), register)
    return dead
