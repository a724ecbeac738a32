"""Views: what looking at a tensor in another shape does to its sizes and to its layout.

    (T, [q 64 | k 8 | v 8] of H)  view(-1, 80, H)         (T, [q 64 | k 8 | v 8], H)
    (T, [q 64 | k 8 | v 8], H)    split_with_sizes(.., 1)  three tensors, a segment each

Cut at the bounds of segments, a tensor's parts keep their layouts; a cut through a segment needs it
whole. Targets and constants are torch's; `cat` has its tensors first, then the dimension.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import PlacementError
from tokenspeed.placement.dims import check_whole, counted, piece, refuse, size_of, with_dim
from tokenspeed.placement.graph import Ref
from tokenspeed.placement.layout import Dim, Layout, Segment, whole
from tokenspeed.placement.reshapes import flattened, reshaped

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


def _split(
    layouts: Sequence[Layout], mesh: Mesh | None, sizes: Sequence[int], dim: int = 0
) -> tuple[Layout, ...]:
    (x,) = layouts
    place = dim % len(x.dims)
    if sum(sizes) != size_of(x.dims[place]):
        refuse(f"parts {tuple(sizes)} of dimension {place}", f"{size_of(x.dims[place])} in all")
    ends = [*accumulate(sizes)]
    return tuple(
        with_dim(x, place, piece(x, place, end - size, end))
        for size, end in zip(sizes, ends, strict=True)
    )


def _unbind(layouts: Sequence[Layout], mesh: Mesh | None, dim: int = 0) -> tuple[Layout, ...]:
    (x,) = layouts
    place = dim % len(x.dims)
    check_whole(x, place)
    rest = Layout(x.dims[:place] + x.dims[place + 1 :], x.partial)
    return (rest,) * counted(x, place)


def _getitem(layouts: Sequence[Layout], mesh: Mesh | None, index: Any) -> tuple[Layout, ...]:
    (x,) = layouts
    dims: list[Dim] = []
    for place, entry in _entries(x, index):
        if entry is None:
            dims.append((Segment(1),))
        elif isinstance(entry, slice):
            dims.append(_sliced(x, place, entry))
        else:
            counted(x, place)
            check_whole(x, place)
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
            refuse(f"an index of {type(entry).__name__}", "None, ..., a number or a slice")
        yield place, entry
        place += entry is not None


def _sliced(x: Layout, place: int, entry: slice) -> Dim:
    if entry == slice(None):
        return x.dims[place]
    if entry.step not in (None, 1):
        refuse(f"a slice of every {entry.step}", "neighbouring elements")
    start, stop, _ = entry.indices(counted(x, place))
    return piece(x, place, start, max(start, stop))


def _cat(layouts: Sequence[Layout], mesh: Mesh | None, dim: int = 0) -> tuple[Layout, ...]:
    first = layouts[0]
    place = dim % len(first.dims)
    for x in layouts:
        counted(x, place)
        if with_dim(x, place, ()) != with_dim(first, place, ()):
            refuse(f"{x} beside {first}", f"one layout but for dimension {place}")
    return (with_dim(first, place, tuple(segment for x in layouts for segment in x.dims[place])),)


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
    "flatten": flattened,
    "float": _same,
    "getitem": _getitem,
    "mT": _swap_last,
    "split_with_sizes": _split,
    "to": _same,
    "transpose": _transpose,
    "unbind": _unbind,
    "unsqueeze": _unsqueeze,
    "view": reshaped,
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
            start, stop, _ = entry.indices(size_of(x.dims[place]))
            before, own = (
                sum(segment.local_size(mesh) for segment in piece(x, place, *bounds))
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
