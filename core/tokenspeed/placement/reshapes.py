"""A tensor seen in another shape: runs of dimensions that have equally many elements, regrouped.

Of a run that changes, the first dimension alone may be cut: it is outermost before and after.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from tokenspeed.placement.dims import check_whole, refuse, shown, size_of
from tokenspeed.placement.layout import TOKENS, Dim, Layout, Segment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenspeed.placement.mesh import Mesh


def reshaped(layouts: Sequence[Layout], mesh: Mesh | None, *shape: Any) -> tuple[Layout, ...]:
    (x,) = layouts
    sizes = [size_of(dim) for dim in x.dims]
    wanted = _resolved(sizes, [*shape[0]] if isinstance(shape[0], tuple | list) else [*shape])
    dims: list[Dim] = []
    for inner, outer in _groups(sizes, wanted):
        dims += _regrouped(x, inner, [wanted[place] for place in outer], mesh)
    return (Layout(tuple(dims), x.partial),)


def _resolved(sizes: list[int], shape: list[int]) -> list[int]:
    """Return the shape with its one -1 filled in; tokens are in front and stay."""
    what = f"a view of {shown(sizes)} as {shown(shape)}"
    has_tokens = TOKENS in sizes
    if has_tokens and (sizes[0] != TOKENS or shape[:1] != [TOKENS]):
        refuse(what, "tokens in front as before")
    count, rest = prod(sizes[has_tokens:]), shape[has_tokens:]
    known = prod(size for size in rest if size != -1)
    filled = [count // max(known, 1) if size == -1 else size for size in rest]
    if rest.count(-1) > 1 or prod(filled) != count:
        refuse(what, f"{count} elements{' a token' * has_tokens}")
    return [TOKENS] * has_tokens + filled


def _groups(sizes: list[int], wanted: list[int]) -> Iterator[tuple[range, range]]:
    """Yield the smallest runs of dimensions, before and after, that have equally many elements."""
    left = right = 0
    while left < len(sizes) or right < len(wanted):
        first, start = left, right
        before, left = (sizes[left], left + 1) if left < len(sizes) else (1, left)
        after, right = (wanted[right], right + 1) if right < len(wanted) else (1, right)
        while before != after:
            if before < after:
                before, left = before * sizes[left], left + 1
            else:
                after, right = after * wanted[right], right + 1
        yield range(first, left), range(start, right)


def _regrouped(x: Layout, places: range, wanted: list[int], mesh: Mesh | None) -> list[Dim]:
    """Return the dimensions that a run becomes: its first one's cuts are those of the first."""
    own = [place for place in places if size_of(x.dims[place]) != 1]
    large = [size for size in wanted if size != 1]
    if len(own) == len(large) == 1:
        dims = [x.dims[own[0]]]
    elif own:
        for place in own[1:]:
            check_whole(x, place)
        inner = prod(size_of(x.dims[place]) for place in own[1:])
        dims = [_scaled(x, own[0], inner, prod(large[1:]), mesh)]
        dims += [(Segment(size),) for size in large[1:]]
    else:
        dims = []
    rest = iter(dims)
    return [(Segment(1),) if size == 1 else next(rest) for size in wanted]


def _scaled(x: Layout, place: int, times: int, parts: int, mesh: Mesh | None) -> Dim:
    """Return a dimension's segments counted in units of `parts` / `times` elements."""
    dim = x.dims[place]
    sizes = [segment.size * times for segment in dim]
    if any(size % parts for size in sizes):
        check_whole(x, place)
        return (Segment(sum(sizes) // parts),)
    scaled = tuple(
        Segment(size // parts, segment.axes) for size, segment in zip(sizes, dim, strict=True)
    )
    if mesh is not None and any(item.size % mesh.size(item.axes) for item in scaled):
        check_whole(x, place)
    return scaled


def flattened(
    layouts: Sequence[Layout], mesh: Mesh | None, start: int = 0, end: int = -1
) -> tuple[Layout, ...]:
    sizes = [size_of(dim) for dim in layouts[0].dims]
    first, last = start % len(sizes), end % len(sizes)
    if TOKENS in sizes[first : last + 1]:
        refuse(f"flatten of {shown(sizes)} from {first} to {last}", "tokens in front as before")
    shape = (*sizes[:first], prod(sizes[first : last + 1]), *sizes[last + 1 :])
    return reshaped(layouts, mesh, shape)
