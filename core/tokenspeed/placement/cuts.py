"""Cuts: which letters of a call are cut over which axes, and what may not be cut."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, NoReturn

from tokenspeed.errors import PlacementError
from tokenspeed.placement.graph import StepArgument
from tokenspeed.placement.layout import TOKENS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from tokenspeed.placement.graph import Node
    from tokenspeed.placement.mesh import Mesh
    from tokenspeed.placement.notation import Rule
    from tokenspeed.placement.sizes import Sized

MAX_RANKS = 1024
"""Numbers of ranks that errors speak of."""


class Mode(Enum):
    """What a call does over one axis, where it cuts no letter."""

    WHOLE = "whole"
    """Every rank computes the same."""
    SUMMANDS = "summands"
    """Linear arguments are summands, so are the results."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Cuts some segments of a letter, where its name alone would cut others.

    Args:
        segments: their places.
    """

    letter: str
    segments: tuple[int, ...]


Choice = str | Cut | Mode
"""What a call does over one axis: cuts the letter of this name, or a Mode. Over axes that have no
choice it is WHOLE."""

Axes = tuple[str, ...]


def cuts_of(
    node: Node, call: Sized, choices: Mapping[str, Choice], mesh: Mesh
) -> dict[str, tuple[Axes, ...]]:
    """Return letter -> axes over which each of its segments is cut."""
    letters: dict[str, list[tuple[str, Cut | None]]] = {}
    for axis in (axis.name for axis in mesh.axes):
        choice = choices.get(axis, Mode.WHOLE)
        if not isinstance(choice, Mode):
            name = choice if isinstance(choice, str) else choice.letter
            _check_letter(node, call, name, axis, mesh)
            for letter in cut_with(call.rule, name):
                cut = choice if isinstance(choice, Cut) and letter == name else None
                letters.setdefault(letter, []).append((axis, cut))
    cuts = {
        letter: tuple(
            _segment_axes(node, call, letter, place, chosen, mesh)
            for place in range(len(call.sizes[letter]))
        )
        for letter, chosen in letters.items()
    }
    for letter in call.rule.summed & cuts.keys():
        if len(set(cuts[letter])) > 1:
            refuse(node, f"{letter} cut unevenly in its segments", "a sum over equal cuts")
    _check_shared(node, call, cuts, mesh)
    return cuts


def cut_with(rule: Rule, letter: str) -> Iterator[str]:
    """Yield the letter, and those that are cut with it."""
    yield letter
    yield from (high for low, high in rule.shared if low == letter)


def _check_letter(node: Node, call: Sized, letter: str, axis: str, mesh: Mesh) -> None:
    free = sorted(call.sizes.keys() - call.rule.whole)
    if letter not in free:
        found = f"{letter} cut over axis {axis}"
        refuse(node, found, f"one of {', '.join(free) or 'no letters'} of {call.rule.text!r}")
    if call.sizes[letter] == (TOKENS,) and any(isinstance(x, StepArgument) for x in node.inputs):
        group = node.spread.get(letter)
        if group is None or axis not in mesh.groups.get(group, ()):
            own = f"those of {group.value}" if group else "no axis"
            refuse(node, f"the step's tokens {letter} cut over axis {axis}", own)


def _segment_axes(
    node: Node,
    call: Sized,
    letter: str,
    place: int,
    chosen: Sequence[tuple[str, Cut | None]],
    mesh: Mesh,
) -> Axes:
    size = call.sizes[letter][place]
    axes = tuple(axis for axis, cut in chosen if cut is None or place in cut.segments)
    if size == TOKENS:
        return axes
    units = _units(node, call, letter)[place]
    for number in range(len(axes)):
        ranks = mesh.size(axes[: number + 1])
        if units % ranks or size % ranks:
            if place == 0:
                _refuse_uneven(node, letter, units, mesh.size(axes))
            return axes[:number]
    return axes


def _units(node: Node, call: Sized, letter: str) -> tuple[int, ...]:
    """Return how many units each segment has: never more than elements."""
    sizes = call.sizes[letter]
    units = node.units.get(letter, sizes)
    if len(units) != len(sizes):
        refuse(node, f"units {tuple(units)} of {letter}", f"a number for each segment of {sizes}")
    return tuple(units)


def _check_shared(
    node: Node, call: Sized, cuts: Mapping[str, tuple[Axes, ...]], mesh: Mesh
) -> None:
    """Check that what a rank has of K belongs to what it has of N, for K<N."""
    for low, high in call.rule.shared:
        if not {low, high} <= call.sizes.keys():
            continue
        low_axes = cuts.get(low, ((),))[0]
        high_axes = cuts.get(high, ((),))[0]
        if high_axes[: len(low_axes)] != low_axes:
            refuse(node, f"{low} cut over {low_axes}", f"the first axes of {high}: {high_axes}")
        count = sum(call.sizes[low])
        left = 1 if count == TOKENS else count // mesh.size(low_axes)
        if high_axes != low_axes and left > 1:
            ranks = mesh.size(high_axes)
            _refuse_uneven(node, low, count, ranks, shared=sum(call.sizes[high]))


def _refuse_uneven(node: Node, letter: str, count: int, ranks: int, *, shared: int = 0) -> NoReturn:
    possible = [
        number
        for number in range(1, MAX_RANKS + 1)
        if count % number == 0 or (shared and shared % number == number % count == 0)
    ]
    listed = ", ".join(map(str, possible))
    refuse(node, f"{count} units of {letter} over {ranks} ranks", f"a cut over {listed}")


def refuse(node: Node, found: str, expected: str) -> NoReturn:
    at = f" ({node.where})" if node.where else ""
    raise PlacementError(
        f"{node.target}{at} cannot be placed: found {found}, expected {expected}; change its "
        "annotation or the numbers of ranks"
    )
