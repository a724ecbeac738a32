"""Placement rules at work: which layouts a call takes and gives, for a choice over each axis.

    ~T I, O I, ~O -> T O    {"a": "O"}    x whole,         W and b cut,      y cut
                            {"a": "I"}    x cut,           W cut, b summand, y summand
                            {"a": "T"}    x cut,           W and b whole,    y cut
                            {"a": SUMMANDS}  x summand,    W whole, b summand, y summand

Who chooses is the compiler; what a module's annotation says is in `annotations.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.errors import PlacementError
from tokenspeed.placement.annotations import annotated
from tokenspeed.placement.cuts import Axes, Choice, Cut, Mode, cut_with, cuts_of, refuse
from tokenspeed.placement.graph import Ref, StepArgument
from tokenspeed.placement.layout import Layout, Segment, whole
from tokenspeed.placement.notation import Letters, Pattern, Rule, parse
from tokenspeed.placement.sizes import Parts, Sized, result_parts, sized

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tokenspeed.placement.graph import Node, Value
    from tokenspeed.placement.mesh import Mesh

__all__ = [
    "Choice",
    "Cut",
    "Letters",
    "Mode",
    "Pattern",
    "Placed",
    "Rule",
    "annotated",
    "follow",
    "parse",
    "place",
    "result_parts",
]


@dataclass(frozen=True, slots=True)
class Placed:
    """The layouts of a call.

    Args:
        inputs: of each Ref, then of each weight.
        outputs: of each result.
    """

    inputs: tuple[Layout, ...]
    outputs: tuple[Layout, ...]


def place(node: Node, values: Sequence[Value], choices: Mapping[str, Choice], mesh: Mesh) -> Placed:
    """Return the layouts of a call.

    A letter is cut over the axes that chose it, the slowest first. Its first segment must be cut
    evenly over all of them; a later one over the first axes, as far as it goes.

    Args:
        choices: axis -> choice.
    Raises:
        PlacementError: a cut that is uneven, through a dimension that must be whole, or makes
            results that are wrong.
    """
    call = sized(node, values)
    cuts = cuts_of(node, call, choices, mesh)
    partial = _partial(node, call, choices)
    rule, inputs = call.rule, []
    for number, given in enumerate(_arguments(node)):
        if isinstance(given, Ref | _Weight):
            pattern, dims, parts = rule.inputs[number], call.inputs[number], call.parts[number]
            assert parts is not None
            if pattern is None or dims is None:
                inputs.append(whole(parts))
            else:
                summands = partial(dims) if pattern.is_linear else frozenset[str]()
                inputs.append(Layout(tuple(_dims(call, cuts, dims, parts)), summands))
    outputs = [
        Layout(tuple(_dims(call, cuts, dims, parts)), partial(dims))
        for dims, parts in zip(call.outputs, call.result_parts(), strict=True)
    ]
    return Placed(tuple(inputs), tuple(outputs))


def follow(
    node: Node, values: Sequence[Value], layouts: Sequence[Layout], mesh: Mesh
) -> dict[str, Choice] | None:
    """Return the choices under which these layouts of the inputs go through as they are.

    Args:
        layouts: of each Ref.
    """
    call = sized(node, values)
    for exact in (False, True):
        choices = _choices_of(node, call, layouts, mesh, exact=exact)
        if choices is None:
            return None
        try:
            placed = place(node, values, choices, mesh)
        except PlacementError:
            continue
        if placed.inputs[: len(layouts)] == tuple(layouts):
            return choices
    return None


class _Weight:
    """Stands for a weight among the arguments of a rule."""


def _arguments(node: Node) -> Iterator[object]:
    """Yield what the patterns of the rule stand for."""
    yield from (given for given in node.inputs if not isinstance(given, StepArgument))
    yield from (_Weight() for _ in node.weights)


def _partial(node: Node, call: Sized, choices: Mapping[str, Choice]) -> _Summands:
    names: dict[str, frozenset[str]] = {}
    for axis, choice in choices.items():
        if choice is Mode.SUMMANDS:
            _check_linear(node, call)
            names[axis] = frozenset()
        elif not isinstance(choice, Mode):
            letter = choice if isinstance(choice, str) else choice.letter
            cut = frozenset(cut_with(call.rule, letter))
            if cut & call.rule.summed:
                names[axis] = cut
    return _Summands(names)


@dataclass(frozen=True, slots=True)
class _Summands:
    """Axes over which results, and linear arguments, are summands.

    Args:
        axes: axis -> letters that an argument does not have if it is a summand.
    """

    axes: Mapping[str, frozenset[str]]

    def __call__(self, dims: tuple[Letters, ...]) -> frozenset[str]:
        own = {dim.letter for dim in dims}
        return frozenset(axis for axis, letters in self.axes.items() if not letters & own)


def _check_linear(node: Node, call: Sized) -> None:
    patterns = zip(call.rule.inputs, _arguments(node), strict=False)
    if not any(p and p.is_linear and isinstance(given, Ref) for p, given in patterns):
        refuse(node, "summands", f"a linear argument (~) in {call.rule.text!r}")


def _dims(
    call: Sized,
    cuts: Mapping[str, tuple[Axes, ...]],
    dims: tuple[Letters, ...],
    parts: Parts,
) -> Iterator[tuple[Segment, ...]]:
    for dim, own in zip(dims, parts, strict=True):
        axes = cuts.get(dim.letter, ())
        if any(axes):
            sizes = call.sizes[dim.letter]
            yield tuple(Segment(*pair) for pair in zip(sizes, axes, strict=True)) * dim.count
        else:
            yield tuple(map(Segment, own))


def _choices_of(
    node: Node, call: Sized, layouts: Sequence[Layout], mesh: Mesh, *, exact: bool
) -> dict[str, Choice] | None:
    """Read choices off layouts; they may still be wrong.

    Args:
        exact: name the segments that are cut.
    """
    found: dict[str, dict[str, set[int]]] = {}
    summands: set[str] = set()
    refs = (number for number, given in enumerate(_arguments(node)) if isinstance(given, Ref))
    for number, layout in zip(refs, layouts, strict=True):
        summands |= layout.partial
        for dim, segments in zip(call.inputs[number] or (), layout.dims, strict=False):
            for place, segment in enumerate(segments):
                for axis in segment.axes:
                    places = found.setdefault(axis, {}).setdefault(dim.letter, set())
                    places.add(place % len(call.sizes.get(dim.letter, (0,))))
    choices: dict[str, Choice] = dict.fromkeys(summands - found.keys(), Mode.SUMMANDS)
    for axis, letters in found.items():
        low = {pair[0] for pair in call.rule.shared if letters.keys() >= set(pair)}
        high = {pair[1] for pair in call.rule.shared if letters.keys() >= set(pair)}
        names = letters.keys() - (high if low else set())
        if len(names) != 1:
            return None
        (name,) = names
        places = letters[name]
        is_part = exact and len(places) < len(call.sizes[name])
        choices[axis] = Cut(name, tuple(sorted(places))) if is_part else name
    return choices
