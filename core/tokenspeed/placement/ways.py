"""The ways in which a node can be computed: which letter, if any, each run of axes cuts.

A module follows its annotation over the axes of its own groups. Over all other axes a node may be
computed whole, on summands where it is linear, or on parts of any dimension that no weight has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

from tokenspeed.errors import PlacementError
from tokenspeed.placement.blocks import refs
from tokenspeed.placement.exchange import letter_of_tokens
from tokenspeed.placement.graph import StepArgument
from tokenspeed.placement.layout import Layout, Segment
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

    def __call__(self, node: Node, sign: Hashable, given: Given) -> Iterable[Way]:
        """Return the ways of a node; its inputs must be got into the layouts of one.

        Args:
            sign: its signature.
        Raises:
            PlacementError: its annotation is wrong.
        """
        if node.rule is None:
            return dict.fromkeys(self._of_view(node, sign, given))
        if sign not in self._calls:
            self._calls[sign] = list(dict.fromkeys(self._of_call(node)))
        return dict.fromkeys((*self._calls[sign], *self._following(node, sign, given)))

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

    def _of_call(self, node: Node) -> Iterator[Way]:
        """Yield the ways by the names of letters: the annotation's, and free ones elsewhere."""
        own = annotated(node, self.mesh)
        place(node, self.values, own, self.mesh)
        free = [run for run in self.runs if not {*run} & own.keys()]
        candidates: list[Choice] = [Mode.WHOLE, *self._letters(node)]
        if node.rule and any(pattern and pattern.is_linear for pattern in node.rule.inputs):
            candidates.append(Mode.SUMMANDS)
        for chosen in product(candidates, repeat=len(free)):
            choices: dict[str, Choice] = dict(own)
            for run, choice in zip(free, chosen, strict=True):
                choices |= dict.fromkeys(run, choice)
            if (way := self._placed(node, choices)) is not None:
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
