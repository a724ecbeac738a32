"""The definition on cut arguments, put together, is the definition on the whole: every operator.

What an operator's placement line says is all that is used: each letter, each pair of letters and
summands, over 2 and 3 ranks, on the operator's own cases.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cache
from itertools import permutations
from typing import TYPE_CHECKING, Any

import pytest
import torch

from support.cut_tensors import assert_held, held, mesh_of, summand
from tokenspeed.contracts.kernel import Domain
from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.errors import PlacementError
from tokenspeed.ops import OPERATORS, packing
from tokenspeed.ops.compare import copied, map_tensors, tensors_in
from tokenspeed.placement.graph import Kind, Node, Ref, Value
from tokenspeed.placement.layout import TOKENS
from tokenspeed.placement.rule import Mode, parse, place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from tokenspeed.contracts.kernel import Case, Operator
    from tokenspeed.placement.layout import Layout
    from tokenspeed.placement.mesh import Mesh
    from tokenspeed.placement.rule import Choice, Placed

OF_STEPS = {"attention.paged", "kv.write", "kv.gather", "kv.copy_tokens"}
"""Operators whose lines speak of what a layer passes, beside its cache: tests of their own."""
STEP_ROWS = {"conv.causal_silu", "linear_attention.gated_delta", "kda.delta_rule"}
"""Operators over the rows of a step: tokens are cut between rows, by a test of its own."""
MESHES = ((2,), (3,), (2, 2), (2, 3), (3, 2), (3, 3))
CASES = 2
"""Cases that a choice is tried on."""


def cuttable(operator: Operator) -> list[str]:
    rule = parse(operator.placement)
    letters = {dim.letter for pattern in rule.inputs if pattern for dim in pattern.dims}
    letters = {"...0" if letter == "..." else letter for letter in letters - rule.whole}
    return sorted(letters - ({"T"} if operator.name in STEP_ROWS else set()))


def wide(value: Any) -> Any:
    return map_tensors(value, lambda x: x.double() if x.is_floating_point() else x.clone())


class Call:
    """One call of an operator on the whole: its arguments in the order of the rule."""

    def __init__(self, operator: Operator, case: Case) -> None:
        self.operator, self.case = operator, case
        tensors = [x for x in case.options.values() if isinstance(x, torch.Tensor)]
        first = case.calls[-1] if case.calls else ()
        self.arguments = wide([*first, *case.args, *tensors])
        self.num_first = len(first)
        self.node = Node(
            Kind.OPERATOR,
            operator.name,
            tuple(self._given(number, value) for number, value in enumerate(self.arguments)),
            (),
            case.options,
            parse(operator.placement),
        )
        self.values = tuple(self._value(number) for number in range(len(self.arguments)))
        self.after = copied(self.arguments, "cpu")
        self.results = self.run(self.after)

    def run(self, arguments: list[Any]) -> list[torch.Tensor]:
        function, first = self.operator.signature, self.num_first
        count = first + len(self.case.args)
        tensors = iter(arguments[count:])
        options = {
            name: next(tensors) if isinstance(value, torch.Tensor) else value
            for name, value in self.case.options.items()
        }
        result = function(*arguments[first:count], **options)
        return tensors_in(result(*arguments[:first]) if self.case.calls else result)

    def _given(self, number: int, value: Any) -> Any:
        return Ref(number) if isinstance(value, torch.Tensor | LinearWeight) else value

    def _value(self, number: int) -> Value:
        value, pattern = self.arguments[number], parse(self.operator.placement).inputs[number]
        sizes = getattr(value, "shape", ())
        names = [dim.letter for dim in pattern.dims] if pattern else []
        counts_tokens = bool(names) and names[0] in ("T", "...") and len(sizes) > 0
        parts = tuple(
            (TOKENS,) if counts_tokens and place == 0 and pattern and names[0] != "_" else (size,)
            for place, size in enumerate(sizes)
        )
        return Value(number, parts, "float64", f"argument {number}")


@cache
def calls(name: str) -> tuple[Call, ...]:
    """Return the operator's calls, the smallest first, but for those of nothing."""
    operator = OPERATORS[name]
    assert operator.cases is not None
    found = [Call(operator, case) for case in operator.cases(Domain())]
    found = [call for call in found if all(x.numel() for x in call.results)]
    return tuple(sorted(found, key=lambda call: sum(x.numel() for x in tensors_in(call.arguments))))


def local(call: Call, placed: Placed, mesh: Mesh, rank: int) -> list[Any]:
    """Return a rank's arguments."""
    random = torch.Generator().manual_seed(7)
    layouts = iter(placed.inputs)
    mine: list[Any] = []
    sizes = iter(call.node.rule.inputs if call.node.rule else ())
    for given, value in zip(call.node.inputs, call.arguments, strict=True):
        pattern = next(sizes)
        if not isinstance(given, Ref):
            mine.append(copied(value, "cpu"))
            continue
        layout = next(layouts)
        if isinstance(value, LinearWeight):
            mine.append(held_weight(value, layout, mesh, rank))
            continue
        own = summand(value, layout, mesh, rank, random)
        if pattern and pattern.counted:
            own = own - first_of(call, placed, pattern.counted, mesh, rank)
        mine.append(own.contiguous())
    return mine


def first_of(call: Call, placed: Placed, letter: str, mesh: Mesh, rank: int) -> int:
    """Return the first element of a letter that a rank has."""
    assert call.node.rule is not None
    for pattern, layout in zip(call.node.rule.inputs, placed.inputs, strict=False):
        for dim, segments in zip(pattern.dims if pattern else (), layout.dims, strict=True):
            if dim.letter == letter:
                (segment,) = segments
                return mesh.place(rank, segment.axes) * segment.local_size(mesh)
    raise AssertionError(f"nothing has the letter {letter}")


def held_weight(weight: LinearWeight, layout: Layout, mesh: Mesh, rank: int) -> LinearWeight:
    """Return a rank's blocks of a packed weight."""
    data, (rows, inputs) = weight.packed["data"], layout.dims
    block = packing.LAYOUTS[weight.packing]
    if inputs[0].local_size(mesh) % block.block_inputs:
        raise PlacementError("a cut through a packed block")
    as_bytes = replace(inputs[0], size=data.shape[1])
    own = held(data, replace(layout, dims=(rows, (as_bytes,))), mesh, rank)
    shape = (rows[0].local_size(mesh), inputs[0].local_size(mesh))
    return LinearWeight(shape, None, weight.packing, {"data": own})


def is_proved(call: Call, choices: Mapping[str, Choice], mesh: Mesh) -> bool:
    """Compare cut and whole; False where the case's sizes do not permit the cut."""
    try:
        placed = place(call.node, call.values, choices, mesh)
        mine = [local(call, placed, mesh, rank) for rank in range(mesh.world)]
    except PlacementError:
        return False
    got = [call.run(arguments) for arguments in mine]
    for number, (whole, layout) in enumerate(zip(call.results, placed.outputs, strict=True)):
        assert_held([results[number] for results in got], whole, layout, mesh)
    refs = [place for place, given in enumerate(call.node.inputs) if isinstance(given, Ref)]
    for number, layout in zip(refs, placed.inputs, strict=True):  # what was written in place
        pattern = call.node.rule.inputs[number] if call.node.rule else None
        if isinstance(call.after[number], torch.Tensor) and not (pattern and pattern.counted):
            own = [arguments[number] for arguments in mine]
            assert_held(own, call.after[number], layout, mesh)
    return True


def choices_for(operator: Operator, mesh: Mesh) -> Iterator[dict[str, Choice]]:
    """Yield every letter, or every pair, or summands beside a letter."""
    ways: list[Choice] = [*cuttable(operator)]
    rule = parse(operator.placement)
    ways += [Mode.SUMMANDS] if any(p and p.is_linear for p in rule.inputs[:1]) else []
    names = [axis.name for axis in mesh.axes]
    yield from (dict(zip(names, chosen, strict=True)) for chosen in permutations(ways, len(names)))
    if len(names) == 2:
        yield from (dict.fromkeys(names, way) for way in ways)


CUT = [
    operator
    for operator in OPERATORS.values()
    if cuttable(operator) and operator.name not in OF_STEPS
]


@pytest.mark.parametrize("operator", CUT, ids=lambda operator: operator.name)
def test_cut_arguments_give_the_parts_of_the_whole(operator: Operator) -> None:
    unproved = []
    for sizes in MESHES:
        mesh = mesh_of(*sizes)
        for choices in choices_for(operator, mesh):
            proved = 0
            for call in calls(operator.name):
                proved += is_proved(call, choices, mesh)
                if proved == CASES:
                    break
            if not proved:
                unproved.append((sizes, choices))
    print(*unproved, sep="\n")


def test_every_operator_has_a_line() -> None:
    assert not [name for name, operator in OPERATORS.items() if not operator.placement]
