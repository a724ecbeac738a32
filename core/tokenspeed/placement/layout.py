"""Layouts: how one tensor lies over the axes of a mesh.

    (T, [q 4096 over a b | k 1024 over a]) partial over -      the fused projection of 2 kv heads

Each dimension is a row of segments (most have one); each segment is cut over some axes, the slowest
first, and whole on all others. A tensor may be summands over further axes (`Partial`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.errors import EngineError

if TYPE_CHECKING:
    from tokenspeed.placement.mesh import Mesh

TOKENS = -1
"""Size of a dimension that counts tokens (or rows of the head): it differs from step to step."""


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of a dimension.

    Args:
        size: elements on all ranks together, or TOKENS.
        axes: over which it is cut, the slowest first.
    """

    size: int
    axes: tuple[str, ...] = ()

    def local_size(self, mesh: Mesh) -> int:
        """Return the elements on one rank; TOKENS where they differ from rank to rank."""
        if self.size == TOKENS:
            return TOKENS
        ranks = mesh.size(self.axes)
        if self.size % ranks:
            raise EngineError(f"a segment of {self.size} cannot be cut over {ranks} ranks evenly")
        return self.size // ranks


Dim = tuple[Segment, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """How one tensor lies over the ranks.

    Args:
        dims: segments of each dimension.
        partial: axes over which the ranks hold summands.
    """

    dims: tuple[Dim, ...]
    partial: frozenset[str] = frozenset()

    def local_shape(self, mesh: Mesh) -> tuple[int, ...]:
        """Return the shape on one rank; TOKENS where it differs from step to step."""
        return tuple(
            TOKENS if dim[0].size == TOKENS else sum(segment.local_size(mesh) for segment in dim)
            for dim in self.dims
        )


def whole(parts: tuple[tuple[int, ...], ...]) -> Layout:
    """Return the layout of a tensor that every rank has whole.

    Args:
        parts: sizes of the segments of each dimension.
    """
    return Layout(tuple(tuple(Segment(size) for size in dim) for dim in parts))
