"""What a module's annotation says of each axis: letters to groups, groups to axes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.errors import PlacementError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenspeed.placement.graph import Node
    from tokenspeed.placement.mesh import Mesh


def annotated(node: Node, mesh: Mesh) -> dict[str, str]:
    """Return axis -> letter for the axes of the groups in `node.spread`.

    Where the rule has K<N, the first axes of N that the units of K allow cut K, and N with it; the
    others cut N alone, so that K is shared. K may also be spread over a group of its own, as the
    tokens of attention are.

    Raises:
        PlacementError: a letter that the rule does not have, or two letters over one axis.
    """
    choices: dict[str, str] = {}
    for letter, group in node.spread.items():
        _check_known(node, letter)
        for axis, name in _letters_of_axes(node, letter, mesh):
            if choices.setdefault(axis, name) != name:
                raise PlacementError(
                    f"{node.target} ({node.where}) spreads both {choices[axis]} and {name} over "
                    f"axis {axis} of {group.value}, expected one letter an axis; change its "
                    "annotation"
                )
    return choices


def _letters_of_axes(node: Node, letter: str, mesh: Mesh) -> Iterator[tuple[str, str]]:
    """Yield (axis, letter that is cut over it)."""
    group = node.spread[letter]
    axes = mesh.groups.get(group, ())
    shared = node.rule.shared if node.rule else ()
    if any(low == letter and node.spread.get(high) is group for low, high in shared):
        return  # the axes of the other letter say which of them cut this one
    low = next(
        (low for low, high in shared if high == letter and node.spread.get(low, group) is group), ""
    )
    units = node.units.get(low, (1,))[0]
    for number, axis in enumerate(axes):
        if units % mesh.size(axes[: number + 1]):
            low = ""
        yield axis, low or letter


def _check_known(node: Node, letter: str) -> None:
    rule = node.rule
    dims = [dim for pattern in rule.inputs if pattern for dim in pattern.dims] if rule else []
    free = sorted({dim.letter for dim in dims if not dim.is_whole})
    if letter not in free:
        raise PlacementError(
            f"{node.target} ({node.where}) spreads {letter} over {node.spread[letter].value}, "
            f"expected one of {', '.join(free) or 'no letters'} of "
            f"{rule.text if rule else ''!r}; change its annotation"
        )
