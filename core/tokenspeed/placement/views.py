"""Views: what looking at a tensor in another shape does to its sizes and to its layout.

    (T, [q 64 | k 8 | v 8] of H)  view(-1, 80, H)         (T, [q 64 | k 8 | v 8], H)
    (T, [q 64 | k 8 | v 8], H)    split_with_sizes(.., 1)  three tensors, a segment each

Cut at the bounds of segments, a tensor's parts keep their layouts; a cut through a segment needs it
whole. Targets and constants are torch's; `cat` has its tensors first, then the dimension.
"""

from __future__ import annotations

from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, Any, NoReturn

from tokenspeed.errors import PlacementError
from tokenspeed.placement.graph import Ref
from tokenspeed.placement.layout import TOKENS, Dim, Layout, Segment, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tokenspeed.placement.graph import Node
    from tokenspeed.placement.mesh import Mesh
    from tokenspeed.placement.sizes import Parts


def view_parts(
    target: str, parts: Sequence[Parts], arguments: Sequence[Any] = ()
) -> tuple[Parts, ...]:
    """Return the parts of each result of a view.

    Args:
        target: a key of `VIEWS`.
        parts: of each tensor.
        arguments: constants that follow, such as the sizes of a view; TOKENS counts tokens.
    Raises:
        PlacementError: it is no view that is known, or it does not fit the tensor.
    """
    results = _known(target)([whole(item) for item in parts], None, *arguments)
    return tuple(
        tuple(tuple(segment.size for segment in dim) for dim in layout.dims) for layout in results
    )


def view_layout(node: Node, layouts: Sequence[Layout], mesh: Mesh) -> tuple[Layout, ...]:
    """Return the layout of each result of a view.

    Args:
        layouts: of each Ref.
    Raises:
        PlacementError: the layouts do not permit it; says which dimension must be whole.
    """
    try:
        return _known(node.target)(layouts, mesh, *constants(node))
    except PlacementError as error:
        raise PlacementError(f"{node.where}: {error}") from None


def local_arguments(node: Node, layouts: Sequence[Layout], mesh: Mesh) -> tuple[Any, ...]:
    """Return the constants of a node's call on one rank: those of a view on local sizes.

    Args:
        layouts: of each Ref.
    """
    arguments = constants(node)
    localise = None if node.rule is not None else _LOCAL.get(node.target)
    if localise is None:
        return arguments
    return localise(layouts, view_layout(node, layouts, mesh), mesh, *arguments)


def constants(node: Node) -> tuple[Any, ...]:
    """Return the inputs of a node that are no values of the graph."""
    return tuple(given for given in node.inputs if not isinstance(given, Ref))


def _known(target: str) -> Callable[..., tuple[Layout, ...]]:
    if target not in VIEWS:
        raise PlacementError(
            f"{target} is no view; known are {', '.join(sorted(VIEWS))}; write it with these, or "
            "as an operator"
        )
    return VIEWS[target]


def _view(layouts: Sequence[Layout], mesh: Mesh | None, *shape: Any) -> tuple[Layout, ...]:
    (x,) = layouts
    sizes = [_size(dim) for dim in x.dims]
    wanted = _resolved(sizes, [*shape[0]] if isinstance(shape[0], tuple | list) else [*shape])
    dims: list[Dim] = []
    for inner, outer in _groups(sizes, wanted):
        dims += _regrouped(x, inner, [wanted[place] for place in outer], mesh)
    return (Layout(tuple(dims), x.partial),)


def _resolved(sizes: list[int], shape: list[int]) -> list[int]:
    """Return the shape with its one -1 filled in; tokens are in front and stay."""
    what = f"a view of {_shown(sizes)} as {_shown(shape)}"
    has_tokens = TOKENS in sizes
    if has_tokens and (sizes[0] != TOKENS or shape[:1] != [TOKENS]):
        _refuse(what, "tokens in front as before")
    count, rest = prod(sizes[has_tokens:]), shape[has_tokens:]
    known = prod(size for size in rest if size != -1)
    filled = [count // max(known, 1) if size == -1 else size for size in rest]
    if rest.count(-1) > 1 or prod(filled) != count:
        _refuse(what, f"{count} elements{' a token' * has_tokens}")
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
    own = [place for place in places if _size(x.dims[place]) != 1]
    large = [size for size in wanted if size != 1]
    if len(own) == len(large) == 1:
        dims = [x.dims[own[0]]]
    elif own:
        for place in own[1:]:
            _check_whole(x, place)
        inner = prod(_size(x.dims[place]) for place in own[1:])
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
        _check_whole(x, place)
        return (Segment(sum(sizes) // parts),)
    scaled = tuple(
        Segment(size // parts, segment.axes) for size, segment in zip(sizes, dim, strict=True)
    )
    if mesh is not None and any(item.size % mesh.size(item.axes) for item in scaled):
        _check_whole(x, place)
    return scaled


def _flatten(
    layouts: Sequence[Layout], mesh: Mesh | None, start: int = 0, end: int = -1
) -> tuple[Layout, ...]:
    sizes = [_size(dim) for dim in layouts[0].dims]
    first, last = start % len(sizes), end % len(sizes)
    if TOKENS in sizes[first : last + 1]:
        _refuse(f"flatten of {_shown(sizes)} from {first} to {last}", "tokens in front as before")
    shape = (*sizes[:first], prod(sizes[first : last + 1]), *sizes[last + 1 :])
    return _view(layouts, mesh, shape)


def _split(
    layouts: Sequence[Layout], mesh: Mesh | None, sizes: Sequence[int], dim: int = 0
) -> tuple[Layout, ...]:
    (x,) = layouts
    place = dim % len(x.dims)
    if sum(sizes) != _size(x.dims[place]):
        _refuse(f"parts {tuple(sizes)} of dimension {place}", f"{_size(x.dims[place])} in all")
    ends = [*accumulate(sizes)]
    return tuple(
        _with(x, place, _piece(x, place, end - size, end))
        for size, end in zip(sizes, ends, strict=True)
    )


def _piece(x: Layout, place: int, start: int, stop: int) -> Dim:
    """Return the elements [start, stop) of a dimension; a segment that is cut through is whole."""
    found, first = [], 0
    for segment in x.dims[place]:
        low, high = max(start, first), min(stop, first + segment.size)
        if high > low and high - low < segment.size:
            _check_whole(x, place, segment)
        if high > low:
            found.append(Segment(high - low, segment.axes))
        first += segment.size
    return tuple(found) or (Segment(0),)


def _unbind(layouts: Sequence[Layout], mesh: Mesh | None, dim: int = 0) -> tuple[Layout, ...]:
    (x,) = layouts
    place = dim % len(x.dims)
    _check_whole(x, place)
    rest = Layout(x.dims[:place] + x.dims[place + 1 :], x.partial)
    return (rest,) * _counted(x, place)


def _getitem(layouts: Sequence[Layout], mesh: Mesh | None, index: Any) -> tuple[Layout, ...]:
    (x,) = layouts
    dims: list[Dim] = []
    for place, entry in _entries(x, index):
        if entry is None:
            dims.append((Segment(1),))
        elif isinstance(entry, slice):
            dims.append(_sliced(x, place, entry))
        else:
            _counted(x, place)
            _check_whole(x, place)
    return (Layout(tuple(dims), x.partial),)


def _entries(x: Layout, index: Any) -> Iterator[tuple[int, Any]]:
    """Yield (dimension, what the index says of it); of None the dimension means nothing."""
    entries = list(index) if isinstance(index, tuple) else [index]
    missing = len(x.dims) - sum(entry is not None and entry is not ... for entry in entries)
    dots = next((at for at, entry in enumerate(entries) if entry is ...), len(entries))
    entries[dots : dots + 1] = [slice(None)] * missing
    place = 0
    for entry in entries:
        if not (entry is None or isinstance(entry, slice | int)):
            _refuse(f"an index of {type(entry).__name__}", "None, ..., a number or a slice")
        yield place, entry
        place += entry is not None


def _sliced(x: Layout, place: int, entry: slice) -> Dim:
    if entry == slice(None):
        return x.dims[place]
    if entry.step not in (None, 1):
        _refuse(f"a slice of every {entry.step}", "neighbouring elements")
    start, stop, _ = entry.indices(_counted(x, place))
    return _piece(x, place, start, max(start, stop))


def _cat(layouts: Sequence[Layout], mesh: Mesh | None, dim: int = 0) -> tuple[Layout, ...]:
    first = layouts[0]
    place = dim % len(first.dims)
    for x in layouts:
        _counted(x, place)
        if _with(x, place, ()) != _with(first, place, ()):
            _refuse(f"{x} beside {first}", f"one layout but for dimension {place}")
    return (_with(first, place, tuple(segment for x in layouts for segment in x.dims[place])),)


def _transpose(
    layouts: Sequence[Layout], mesh: Mesh | None, first: int, second: int
) -> tuple[Layout, ...]:
    (x,) = layouts
    dims = list(x.dims)
    dims[first], dims[second] = dims[second], dims[first]
    return (Layout(tuple(dims), x.partial),)


def _swap_last(layouts: Sequence[Layout], mesh: Mesh | None) -> tuple[Layout, ...]:
    return _transpose(layouts, mesh, -1, -2)


def _unsqueeze(layouts: Sequence[Layout], mesh: Mesh | None, dim: int) -> tuple[Layout, ...]:
    (x,) = layouts
    place = dim % (len(x.dims) + 1)
    return (Layout((*x.dims[:place], (Segment(1),), *x.dims[place:]), x.partial),)


def _same(layouts: Sequence[Layout], mesh: Mesh | None, *_: Any) -> tuple[Layout, ...]:
    return tuple(layouts)


VIEWS: Mapping[str, Callable[..., tuple[Layout, ...]]] = {
    "cat": _cat,
    "contiguous": _same,
    "flatten": _flatten,
    "float": _same,
    "getitem": _getitem,
    "mT": _swap_last,
    "split_with_sizes": _split,
    "to": _same,
    "transpose": _transpose,
    "unbind": _unbind,
    "unsqueeze": _unsqueeze,
    "view": _view,
}
"""Target -> (layouts, mesh or None, *constants) to the layouts of the results."""


def _local_shape(
    layouts: Sequence[Layout], results: Sequence[Layout], mesh: Mesh, *shape: Any
) -> tuple[Any, ...]:
    local = results[0].local_shape(mesh)
    return (local,) if isinstance(shape[0], tuple | list) else local


def _local_sizes(
    layouts: Sequence[Layout],
    results: Sequence[Layout],
    mesh: Mesh,
    sizes: Sequence[int],
    dim: int = 0,
) -> tuple[Any, ...]:
    return tuple(result.local_shape(mesh)[dim] for result in results), dim


def _local_index(
    layouts: Sequence[Layout], results: Sequence[Layout], mesh: Mesh, index: Any
) -> tuple[Any, ...]:
    (x,) = layouts
    local = []
    for place, entry in _entries(x, index):
        if isinstance(entry, slice) and entry != slice(None):
            start, stop, _ = entry.indices(_size(x.dims[place]))
            before, own = (
                sum(segment.local_size(mesh) for segment in _piece(x, place, *bounds))
                for bounds in ((0, start), (start, max(start, stop)))
            )
            entry = slice(before, before + own)
        local.append(entry)
    return (tuple(local),)


_LOCAL: Mapping[str, Callable[..., tuple[Any, ...]]] = {
    "getitem": _local_index,
    "split_with_sizes": _local_sizes,
    "view": _local_shape,
}
"""Targets whose constants are other ones on a rank; the constants of the rest hold everywhere."""


def _size(dim: Dim) -> int:
    return TOKENS if dim[0].size == TOKENS else sum(segment.size for segment in dim)


def _counted(x: Layout, place: int) -> int:
    """Return the size of a dimension that counts no tokens."""
    size = _size(x.dims[place])
    if size == TOKENS:
        _refuse(f"dimension {place} of tokens taken apart or joined", "another dimension")
    return size


def _with(x: Layout, place: int, dim: Dim) -> Layout:
    return Layout((*x.dims[:place], dim, *x.dims[place + 1 :]), x.partial)


def _check_whole(x: Layout, place: int, segment: Segment | None = None) -> None:
    segments = x.dims[place] if segment is None else (segment,)
    axes = sorted({axis for item in segments for axis in item.axes})
    if axes:
        sizes = " | ".join(str(item.size) for item in segments)
        _refuse(f"dimension {place} ({sizes}) cut over {', '.join(axes)}", "it whole")


def _shown(sizes: Sequence[int]) -> str:
    return " x ".join("T" if size == TOKENS else str(size) for size in sizes)


def _refuse(found: str, expected: str) -> NoReturn:
    raise PlacementError(
        f"a view does not fit: found {found}, expected {expected}; gather the tensor before it, or "
        "view it otherwise"
    )
