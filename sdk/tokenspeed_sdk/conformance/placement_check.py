"""Proves an operator's placement line: the definition on cut arguments is that on the whole, cut.

The line alone says how arguments are cut and results put together; each letter, each pair of
letters, and summands, over 2 and 3 ranks, on the operator's own cases, whose letters are made
longer so that they can be cut.
"""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import cache
from itertools import combinations_with_replacement, product
from typing import TYPE_CHECKING, Any

import torch

from tokenspeed.contracts.kernel import Domain
from tokenspeed.contracts.weights import LinearWeight
from tokenspeed.errors import PlacementError
from tokenspeed.ops import packing
from tokenspeed.ops.compare import copied, map_tensors, tensors_in
from tokenspeed.placement.graph import Kind, Node, Ref, Value
from tokenspeed.placement.layout import TOKENS
from tokenspeed.placement.rule import Letters, Mode, parse, place
from tokenspeed_sdk.conformance.cut_tensors import assert_held, held, mesh_of, summand

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from tokenspeed.contracts.kernel import Case, Operator
    from tokenspeed.placement.layout import Layout
    from tokenspeed.placement.mesh import Mesh
    from tokenspeed.placement.rule import Choice, Pattern, Placed, Rule

TIMES = 6
"""By how much a case's letters are made longer, so that 2 and 3 ranks can have them."""


def cuttable(operator: Operator) -> list[str]:
    """Return the letters whose cuts can be proved, of `...` the first dimension.

    An operator over the rows of a step has tokens that are cut between rows; one that takes a
    batch has a line for what layers pass beside their cache.
    """
    rule = parse(operator.placement)
    letters = {dim.letter for pattern in rule.inputs if pattern for dim in pattern.dims}
    letters = {"...0" if letter == "..." else letter for letter in letters - rule.whole}
    parameters = inspect.signature(operator.signature).parameters
    if "batch" in parameters:
        return []
    return sorted(letters - ({"T"} if "rows" in parameters else set()))


def wide(value: Any) -> Any:
    return map_tensors(value, lambda x: x.double() if x.is_floating_point() else x.clone())


def longer(value: Any, pattern: Pattern | None, times: Mapping[str, int], seed: int) -> Any:
    """Return an argument whose letters are so many times longer, with numbers of its own."""
    random = torch.Generator().manual_seed(seed)
    if isinstance(value, LinearWeight):
        rows, inputs = (times.get(dim.letter, 1) for dim in pattern.dims) if pattern else (1, 1)
        data = value.packed["data"].repeat(rows, inputs)
        shape = (value.shape[0] * rows, value.shape[1] * inputs)
        return LinearWeight(shape, None, value.packing, {"data": data})
    if not isinstance(value, torch.Tensor) or pattern is None:
        return value
    dims = pattern.dims
    if dims[0].letter == "...":
        dims = tuple(Letters(f"...{number}") for number in range(value.dim() - len(dims) + 1))
        dims += pattern.dims[1:]
    for number, dim in enumerate(dims):
        value = value.repeat_interleave(times.get(dim.letter, 1), number)
    if pattern.counted:
        factor = times.get(pattern.counted, 1)
        return value * factor + torch.randint(0, factor, value.shape, generator=random)
    if value.is_floating_point():
        return value * (1 + torch.rand(value.shape, generator=random, dtype=value.dtype) / 4)
    return value


def tokens_of(rule: Rule) -> set[str]:
    """Return the letter that counts tokens or rows: it is in front of the first argument."""
    first = {pattern.dims[0].letter for pattern in rule.inputs[:1] if pattern}
    return {"...", "...0"} if "..." in first else first & {"T", "R"}


class Call:
    """One call of an operator on the whole: its arguments in the order of the rule.

    Args:
        times: letter -> by how much it is longer than in the case.
    """

    def __init__(self, operator: Operator, case: Case, times: Mapping[str, int]) -> None:
        self.operator, self.case = operator, case
        self.rule = parse(operator.placement)
        tensors = [x for x in case.options.values() if isinstance(x, torch.Tensor)]
        first = max(case.calls, key=lambda call: len(call[0])) if case.calls else ()
        given = wide([*first, *case.args, *tensors])
        self.arguments = [
            longer(value, self.rule.inputs[number], times, number)
            for number, value in enumerate(given)
        ]
        self.num_first = len(first)
        self.node = Node(
            Kind.OPERATOR,
            operator.name,
            tuple(self._given(number, value) for number, value in enumerate(self.arguments)),
            (),
            case.options,
            self.rule,
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
        pattern = self.rule.inputs[number]
        sizes = [(size,) for size in getattr(self.arguments[number], "shape", ())]
        if sizes and pattern and pattern.dims[0].letter in tokens_of(self.rule):
            sizes[0] = (TOKENS,)
        return Value(number, tuple(sizes), "float64", f"argument {number}")


@cache
def calls(operator: Operator) -> tuple[Call, ...]:
    """Return calls on an operator's smallest cases of each kind, their letters made longer."""
    rule = parse(operator.placement)
    assert operator.cases is not None
    letters = dict.fromkeys(set(cuttable(operator)) - tokens_of(rule), TIMES)
    low = {pair[0] for pair in rule.shared}
    ways = [letters, *({**letters, **dict.fromkeys(low, count)} for count in (1, 2, 3) if low)]
    kinds: dict[Any, Case] = {}
    for case in sorted(operator.cases(Domain()), key=volume):
        tensors = sum(isinstance(x, torch.Tensor) for x in case.options.values())
        if volume(case) > 1:
            kinds.setdefault((len(case.args), tensors), case)
    return tuple(Call(operator, case, times) for case in kinds.values() for times in ways)


def volume(case: Case) -> int:
    """Return how many numbers a case has; 0 where a tensor has none, 1 where it has one row."""
    shapes = [x.shape for x in tensors_in([*case.args, *case.options.values()])]
    if case.calls:
        return sum(shape.numel() for shape in shapes) if shapes[0][0] > 1 else 1
    if not all(shape.numel() for shape in shapes):
        return 0
    return sum(shape.numel() for shape in shapes) if shapes[0][0] > 1 else 1


def local(call: Call, placed: Placed, mesh: Mesh, rank: int) -> list[Any]:
    """Return a rank's arguments."""
    random = torch.Generator().manual_seed(7)
    layouts = iter(placed.inputs)
    mine: list[Any] = []
    for given, value, pattern in zip(
        call.node.inputs, call.arguments, call.rule.inputs, strict=False
    ):
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
    for pattern, layout in zip(call.rule.inputs, placed.inputs, strict=False):
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
    """Compare cut and whole; False where the case's sizes do not permit the cut.

    Raises:
        AssertionError: the parts put together are not the whole.
    """
    try:
        placed = place(call.node, call.values, choices, mesh)
        mine = [local(call, placed, mesh, rank) for rank in range(mesh.world)]
    except PlacementError:
        return False
    try:
        _check_parts(call, placed, mine, mesh)
    except (AssertionError, RuntimeError) as error:
        cuts = " and ".join(
            f"{getattr(choice, 'value', choice)} cut over {mesh.size(axis)} ranks"
            for axis, choice in choices.items()
        )
        raise AssertionError(
            f"{call.operator.name} with {cuts}, case {call.case.name!r}: its parts are not the "
            f"whole, as {call.rule.text!r} says; {error}; correct the placement line"
        ) from error
    return True


def _check_parts(call: Call, placed: Placed, mine: list[list[Any]], mesh: Mesh) -> None:
    got = [call.run(arguments) for arguments in mine]
    for number, (whole, layout) in enumerate(zip(call.results, placed.outputs, strict=True)):
        assert_held([results[number] for results in got], whole, layout, mesh)
    refs = [number for number, given in enumerate(call.node.inputs) if isinstance(given, Ref)]
    for number, layout in zip(refs, placed.inputs, strict=True):  # what was written in place
        pattern = call.rule.inputs[number]
        if isinstance(call.after[number], torch.Tensor) and not (pattern and pattern.counted):
            own = [arguments[number] for arguments in mine]
            assert_held(own, call.after[number], layout, mesh)


def ways_of(operator: Operator) -> list[Choice]:
    """Return what the operator may do over an axis beside computing the same."""
    has_summands = any(p and p.is_linear for p in parse(operator.placement).inputs[:1])
    return [*cuttable(operator), *([Mode.SUMMANDS] if has_summands else [])]


def prove(operator: Operator, pairs: Iterable[tuple[tuple[int, ...], dict[str, Choice]]]) -> None:
    """Compare on every case that permits one of the ways; one at least must."""
    proved = [
        is_proved(call, choices, mesh_of(*sizes))
        for sizes, choices in pairs
        for call in calls(operator)
    ]
    assert any(proved), f"no case of {operator.name} can be cut so"


def ways_and_pairs(operator: Operator) -> Iterator[tuple[Choice, ...]]:
    """Yield what `check` takes: each way, and each pair of ways."""
    ways = ways_of(operator)
    yield from ((way,) for way in ways)
    yield from combinations_with_replacement(ways, 2)


def check(operator: Operator, *ways: Choice) -> None:
    """Check one way over 2 and over 3 ranks, or a pair of them over 2 x 3.

    Raises:
        AssertionError: parts put together are not the whole, or no case can be cut so.
    """
    if len(ways) == 1:
        for ranks in (2, 3):
            prove(operator, [((ranks,), {"a": ways[0]})])
        return
    orders = [dict(zip("ab", order, strict=True)) for order in (ways, ways[::-1])]
    prove(operator, product(((2, 3), (3, 2)), orders))
