"""Moves: one rank's part in changing a value's layout.

Communicators join and cut along the first axis; what is cut along another goes there and back, and
of a dimension with several segments only the one that moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from tokenspeed.placement.layout import TOKENS
from tokenspeed.placement.program import Collective

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.executor.token_counts import TokenCounts
    from tokenspeed.placement.layout import Layout, Segment
    from tokenspeed.placement.mesh import Mesh

    Change = Callable[[torch.Tensor, TokenCounts], torch.Tensor]


class Move(Protocol):
    """What there is to do, see `placement.program.Move`."""

    @property
    def collective(self) -> Collective: ...
    @property
    def axes(self) -> tuple[str, ...]: ...
    @property
    def dim(self) -> int: ...
    @property
    def segment(self) -> int: ...
    @property
    def before(self) -> Layout: ...
    @property
    def after(self) -> Layout: ...


def change_of(move: Move, mesh: Mesh, rank: int, communicator: Communicator) -> Change:
    """Return what a rank does for a move.

    Args:
        communicator: of the ranks that differ in the move's axes, ordered by their places.
    Returns:
        (tensor, tokens of the step) to the tensor in the new layout. The tensor may be overwritten.
    """
    place = mesh.place(rank, move.axes)
    match move.collective:
        case Collective.ALL_REDUCE:
            return lambda x, _: communicator.all_reduce(x)
        case Collective.FIRST:
            return lambda x, _: x if place == 0 else torch.zeros_like(x)
        case Collective.ALL_GATHER:
            return _gather(move, mesh, rank, communicator)
        case Collective.REDUCE_SCATTER:
            return _scatter(move, mesh, rank, communicator)
        case Collective.SLICE:
            return _slice(move, mesh, rank)


def _gather(move: Move, mesh: Mesh, rank: int, communicator: Communicator) -> Change:
    cut = _segment(move, move.before)
    span = _span(move, move.before, mesh)

    def gather(x: torch.Tensor, counts: TokenCounts) -> torch.Tensor:
        sizes = counts.sizes(cut.axes, move.axes, rank) if cut.size == TOKENS else None
        return _along(x, move.dim, span, lambda part: communicator.all_gather(part, sizes=sizes))

    return gather


def _scatter(move: Move, mesh: Mesh, rank: int, communicator: Communicator) -> Change:
    cut = _segment(move, move.after)
    assert len(move.before.dims[move.dim]) == 1, "a sum goes out in one segment"

    def scatter(x: torch.Tensor, counts: TokenCounts) -> torch.Tensor:
        sizes = counts.sizes(cut.axes, move.axes, rank) if cut.size == TOKENS else None
        return _along(
            x, move.dim, None, lambda part: communicator.reduce_scatter(part, sizes=sizes)
        )

    return scatter


def _slice(move: Move, mesh: Mesh, rank: int) -> Change:
    cut = _segment(move, move.after)
    span = _span(move, move.before, mesh)
    place = mesh.place(rank, move.axes)

    def own(x: torch.Tensor, counts: TokenCounts) -> torch.Tensor:
        if cut.size == TOKENS:
            sizes = counts.sizes(cut.axes, move.axes, rank)
        else:
            sizes = [cut.local_size(mesh)] * mesh.size(move.axes)
        start = sum(sizes[:place])
        return _along(x, move.dim, span, lambda part: part[start : start + sizes[place]])

    return own


def _segment(move: Move, layout: Layout) -> Segment:
    return layout.dims[move.dim][move.segment]


def _span(move: Move, layout: Layout, mesh: Mesh) -> tuple[int, int, int] | None:
    """Return (before it, its size, behind it) of the segment on this rank; None: it is alone."""
    dim = layout.dims[move.dim]
    if len(dim) == 1:
        return None
    sizes = [segment.local_size(mesh) for segment in dim]
    return sum(sizes[: move.segment]), sizes[move.segment], sum(sizes[move.segment + 1 :])


def _along(
    x: torch.Tensor,
    dim: int,
    span: tuple[int, int, int] | None,
    change: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Apply `change`, which works on the first axis, to one dimension or a segment of it."""
    if span is not None:
        before, part, behind = x.split_with_sizes(list(span), dim)
        return torch.cat((before, _along(part, dim, None, change), behind), dim)
    if dim == 0:
        return change(x.contiguous())
    return change(x.movedim(dim, 0).contiguous()).movedim(0, dim).contiguous()
