"""Dimensions of layouts: their sizes, pieces of them, and what must be whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from tokenspeed.errors import PlacementError
from tokenspeed.placement.layout import TOKENS, Dim, Layout, Segment

if TYPE_CHECKING:
    from collections.abc import Sequence


def size_of(dim: Dim) -> int:
    return TOKENS if dim[0].size == TOKENS else sum(segment.size for segment in dim)


def counted(x: Layout, place: int) -> int:
    """Return the size of a dimension that counts no tokens."""
    size = size_of(x.dims[place])
    if size == TOKENS:
        refuse(f"dimension {place} of tokens taken apart or joined", "another dimension")
    return size


def with_dim(x: Layout, place: int, dim: Dim) -> Layout:
    return Layout((*x.dims[:place], dim, *x.dims[place + 1 :]), x.partial)


def piece(x: Layout, place: int, start: int, stop: int) -> Dim:
    """Return the elements [start, stop) of a dimension; a segment that is cut through is whole."""
    found, first = [], 0
    for segment in x.dims[place]:
        low, high = max(start, first), min(stop, first + segment.size)
        if high > low and high - low < segment.size:
            check_whole(x, place, segment)
        if high > low:
            found.append(Segment(high - low, segment.axes))
        first += segment.size
    return tuple(found) or (Segment(0),)


def check_whole(x: Layout, place: int, segment: Segment | None = None) -> None:
    segments = x.dims[place] if segment is None else (segment,)
    axes = sorted({axis for item in segments for axis in item.axes})
    if axes:
        sizes = " | ".join(str(item.size) for item in segments)
        refuse(f"dimension {place} ({sizes}) cut over {', '.join(axes)}", "it whole")


def shown(sizes: Sequence[int]) -> str:
    return " x ".join("T" if size == TOKENS else str(size) for size in sizes)


def refuse(found: str, expected: str) -> NoReturn:
    raise PlacementError(
        f"a view does not fit: found {found}, expected {expected}; gather the tensor before it, or "
        "view it otherwise"
    )
