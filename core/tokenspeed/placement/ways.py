"""The ways in which a node can be computed: which letter, if any, each run of axes cuts.

A module follows its annotation over the axes of its own groups. Over all other axes a node may be
computed whole, on summands where it is linear, or on parts of any dimension that no weight has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import compress, product, repeat
from operator import and_
from typing import TYPE_CHECKING

from tokenspeed.errors import PlacementError
from tokenspeed.placement.blocks import refs
from tokenspeed.placement.exchange import letter_of_tokens
from tokenspeed.placement.graph import Ref, StepArgument
from tokenspeed.placement.layout import TOKENS, Layout, Segment
from tokenspeed.placement.rule import Cut, Mode, annotated, follow, place
from tokenspeed.placement.sizes import sized
from tokenspeed.placement.views import view_layout

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

    from tokenspeed.placement.exchange import Exchanger
    from tokenspeed.placement.graph import Node, Value
    from tokenspeed.placement.mesh import Mesh
    from tokenspeed.placement.program import Exchange
    from tokenspeed.placement.rule import Choice
    from tokenspeed.placement.sizes import Sized

Axes = tuple[str, ...]
Given = tuple[tuple[Layout, ...], ...]
"""Layouts in which each input of a node is available."""


CHANGES = ("keep", "join", "cut")


@dataclass(frozen=True, slots=True)
class Way:
    """Layouts of a node's Refs, weights and results; what is exchanged around it."""

    inputs: tuple[Layout, ...]
    weights: tuple[Layout, ...]
    outputs: tuple[Layout, ...]
    exchange: Exchange | None = None

    @property
    def cost(self) -> tuple[float, float]:
        """Return what it takes by itself: microseconds, bytes that a rank sends for one token."""
        if self.exchange is None:
            return 0.0, 0.0
        return self.exchange.time_us, self.exchange.bytes_per_token


class Ways:
    """Yields the ways of each node of a graph.

    Args:
        runs: axes that are treated alike, the slowest first.
        exchanger: says what exchanging tokens takes; None: none are exchanged.
    """

    def __init__(
        self,
        values: Sequence[Value],
        mesh: Mesh,
        runs: Sequence[Axes],
        exchanger: Exchanger | None = None,
    ) -> None:
        self.values = values
        self.mesh = mesh
        self.runs = runs
        self.exchanger = exchanger
        self._calls: dict[Hashable, list[Way]] = {}
        self._followed: dict[Hashable, Way | None] = {}
        self._weights: dict[Hashable, tuple[Layout, ...]] = {}

    def __call__(
        self, node: Node, sign: Hashable, given: Given, needed: Sequence[bool]
    ) -> Iterable[Way]:
        """Return the ways of a node; its inputs must be got into the layouts of one.

        Args:
            sign: equal for nodes that are treated alike.
            needed: of each input, whether it is needed later.
        Raises:
            PlacementError: its annotation is wrong.
        """
        if node.rule is None:
            return dict.fromkeys(self._of_view(node, sign, given))
        own = annotated(node, self.mesh)
        choices = tuple(self._choices(node, run, own, given, needed) for run in self.runs)
        key = sign, choices
        if key not in self._calls:
            self._calls[key] = list(dict.fromkeys(self._of_call(node, own, choices)))
        held = self._held(node, sign, own)
        ways = (*self._calls[key], *self._following(node, sign, given))
        return dict.fromkeys(way for way in ways if way.weights == held)

    def _held(self, node: Node, sign: Hashable, own: Mapping[str, str]) -> tuple[Layout, ...]:
        """Return how a module's weights lie: as its annotation says, whatever the search finds.

        They are cut when they are loaded, by the annotation alone: a bias that is no summand there
        cannot become one because that were cheaper.
        """
        if sign not in self._weights:
            placed = place(node, self.values, own, self.mesh)
            self._weights[sign] = placed.inputs[len(refs(node)) :]
        return self._weights[sign]

    def _fitted(self, node: Node, way: Way) -> Way | None:
        """Return a way in the values' own segments; None: it cuts a value in others."""
        inputs = [_fitted(x, self.values[n]) for x, n in zip(way.inputs, refs(node), strict=True)]
        outputs = [
            _fitted(x, self.values[n]) for x, n in zip(way.outputs, node.outputs, strict=True)
        ]
        known = [layout for layout in (*inputs, *outputs) if layout is not None]
        if len(known) < len(inputs) + len(outputs):
            return None
        return replace(way, inputs=tuple(known[: len(inputs)]), outputs=tuple(known[len(inputs) :]))

    def _choices(
        self,
        node: Node,
        run: Axes,
        own: Mapping[str, str],
        given: Given,
        needed: Sequence[bool],
    ) -> tuple[Choice, ...]:
        """Return what a node may do over a run; none: its annotation says it.

        Left out is what something else is never dearer than. A dimension other than tokens is worth
        cutting where an input comes cut so, or as summands to be scattered: of what is whole a part
        can be taken later. Summands that nobody else takes are added as they are: one tensor is
        summed then, not each.
        """
        if {*run} & own.keys():
            return ()
        letters, call = self._letters(node), sized(node, self.values)
        marked = _linear(node)
        linear = list(compress(given, marked))
        summed = [_are_summed(layouts, run) for layouts in linear]
        is_last = not any(map(and_, compress(needed, marked), summed))
        is_free = all(map(_may_be_summands, linear, repeat(run)))
        if any(summed) and is_last and is_free and _is_sum(call):
            return (Mode.SUMMANDS,)
        is_summed = any({*run} <= x.partial for layouts in given for x in layouts)
        cut = set(letters) if is_summed else _cut_letters(node, call, run, given)
        letters = [x for x in letters if x in cut or call.sizes[x] == (TOKENS,)]
        return (Mode.WHOLE, *letters, *([Mode.SUMMANDS] if any(summed) else ()))

    def _of_call(
        self, node: Node, own: Mapping[str, str], choices: Sequence[tuple[Choice, ...]]
    ) -> Iterator[Way]:
        """Yield the ways by the names of letters: the annotation's, and free ones elsewhere."""
        place(node, self.values, own, self.mesh)
        free = [(run, items) for run, items in zip(self.runs, choices, strict=True) if items]
        for chosen in product(*(items for _, items in free)):
            taken: dict[str, Choice] = dict(own)
            for (run, _), choice in zip(free, chosen, strict=True):
                taken |= dict.fromkeys(run, choice)
            if (way := self._placed(node, taken)) is not None:
                yield way
        if (way := self._exchanging(node, own)) is not None:
            yield way

    def _exchanging(self, node: Node, own: Mapping[str, str]) -> Way | None:
        """Return the way whose tokens are exchanged over the axes of a letter, where there is one.

        It takes and gives them cut over those axes; weights are held as in any other.
        """
        exchange = self.exchanger(node, self.values) if self.exchanger else None
        if exchange is None:
            return None
        tokens = dict.fromkeys(exchange.axes, letter_of_tokens(node))
        usual, cut = self._placed(node, own), self._placed(node, {**own, **tokens})
        if usual is None or cut is None:
            return None
        return replace(cut, weights=usual.weights, exchange=exchange)

    def _following(self, node: Node, sign: Hashable, given: Given) -> Iterator[Way]:
        """Yield the ways in which inputs go through as they are, some of their segments cut."""
        for layouts in product(*given):
            key = sign, layouts
            if key not in self._followed:
                found = follow(node, self.values, layouts, self.mesh)
                own = annotated(node, self.mesh)
                agrees = found is not None and _agrees(found, own, self._letters(node))
                self._followed[key] = self._placed(node, found) if found and agrees else None
            if (way := self._followed[key]) is not None:
                yield way

    def _letters(self, node: Node) -> list[str]:
        """Return the letters that may be cut over axes of other groups: the cache stays put."""
        if any(isinstance(item, StepArgument) for item in node.inputs):
            return []
        call = sized(node, self.values)
        num_arguments = len(node.inputs)
        held = {dim.letter for dims in call.inputs[num_arguments:] if dims for dim in dims}
        return [letter for letter in call.sizes if letter not in held | call.rule.whole]

    def _placed(self, node: Node, choices: Mapping[str, Choice]) -> Way | None:
        try:
            placed = place(node, self.values, choices, self.mesh)
        except PlacementError:
            return None
        number = len(refs(node))
        way = Way(placed.inputs[:number], placed.inputs[number:], placed.outputs)
        return self._fitted(node, way)

    def _of_view(self, node: Node, sign: Hashable, given: Given) -> Iterator[Way]:
        """Yield what goes through as it is, or after some axes were joined or cut over tokens."""
        kept = [list(dict.fromkeys(self._changed(layouts))) for layouts in given]
        for layouts in product(*kept):
            if len({(layout.dims[0], layout.partial) for layout in layouts}) > 1:
                continue
            key = sign, layouts
            if key not in self._followed:
                self._followed[key] = self._viewed(node, layouts)
            if (way := self._followed[key]) is not None:
                yield way

    def _viewed(self, node: Node, layouts: tuple[Layout, ...]) -> Way | None:
        try:
            results = view_layout(node, layouts, self.mesh)
        except PlacementError:
            return None
        return self._fitted(node, Way(layouts, (), results))

    def _changed(self, layouts: Iterable[Layout]) -> Iterator[Layout]:
        """Yield each layout, as it is and with axes joined, or with sums cut over tokens.

        A part of the whole is taken for nothing behind the view as well as before it.
        """
        for layout in layouts:
            used = {axis for dim in layout.dims for segment in dim for axis in segment.axes}
            changes = [
                [item for item, own in zip(CHANGES, ({*run}, used | layout.partial, layout.partial),
                                           strict=True) if {*run} <= own]
                for run in self.runs
            ]  # fmt: skip
            for chosen in product(*changes):
                changed = layout
                for run, change in zip(self.runs, chosen, strict=True):
                    changed = _change(changed, run, change)
                yield changed


def _linear(node: Node) -> tuple[bool, ...]:
    """Say of each Ref whether the results are linear in it."""
    tensors = [item for item in node.inputs if not isinstance(item, StepArgument)]
    patterns = node.rule.inputs if node.rule else ()
    return tuple(
        pattern is not None and pattern.is_linear
        for item, pattern in zip(tensors, patterns, strict=False)
        if isinstance(item, Ref)
    )


def _are_summed(layouts: Iterable[Layout], run: Axes) -> bool:
    return any({*run} <= layout.partial for layout in layouts)


def _may_be_summands(layouts: Iterable[Layout], run: Axes) -> bool:
    """Say whether each copy is summands over a run, or whole, which the first rank may keep."""
    return all(
        {*run} <= layout.partial
        or not any({*run} & {*segment.axes} for dim in layout.dims for segment in dim)
        for layout in layouts
    )


def _is_sum(call: Sized) -> bool:
    """Say whether each linear argument is of the result's size, so that none is cheaper to sum."""
    (result, *others) = call.outputs
    shapes = {
        tuple(dim.letter for dim in dims)
        for dims, pattern in zip(call.inputs, call.rule.inputs, strict=False)
        if dims is not None and pattern is not None and pattern.is_linear
    }
    return not others and shapes == {tuple(dim.letter for dim in result)}


def _cut_letters(node: Node, call: Sized, run: Axes, given: Given) -> set[str]:
    """Return the letters that a run cuts in an input as it comes."""
    tensors = [item for item in node.inputs if not isinstance(item, StepArgument)]
    places = [index for index, item in enumerate(tensors) if isinstance(item, Ref)]
    return {
        letter.letter
        for place, layouts in zip(places, given, strict=True)
        for layout in layouts
        for letter, dim in zip(call.inputs[place] or (), layout.dims, strict=False)
        if any({*run} <= {*segment.axes} for segment in dim)
    }


def _fitted(layout: Layout, value: Value) -> Layout | None:
    dims = []
    for dim, parts in zip(layout.dims, value.parts, strict=True):
        if tuple(segment.size for segment in dim) == parts:
            dims.append(dim)
        elif any(segment.axes for segment in dim):
            return None
        else:
            dims.append(tuple(map(Segment, parts)))
    return Layout(tuple(dims), layout.partial)


def _agrees(found: Mapping[str, Choice], own: Mapping[str, str], letters: Sequence[str]) -> bool:
    """Say whether choices that were read off layouts may be made: own or free ones."""
    return own.keys() <= found.keys() and all(
        _letter(choice) == own[axis]
        if axis in own
        else isinstance(choice, Mode) or _letter(choice) in letters
        for axis, choice in found.items()
    )


def _letter(choice: Choice) -> str | Mode:
    return choice.letter if isinstance(choice, Cut) else choice


def _change(layout: Layout, run: Axes, change: str) -> Layout:
    if change == "keep":
        return layout
    dims = tuple(
        tuple(replace(s, axes=tuple(axis for axis in s.axes if axis not in run)) for s in dim)
        for dim in layout.dims
    )
    joined = replace(layout, dims=dims, partial=layout.partial - {*run})
    if change == "join":
        return joined
    first = joined.dims[0][0]
    tokens = (replace(first, axes=first.axes + run),)
    return replace(joined, dims=(tokens, *joined.dims[1:]))
