"""Tensors on a simulated mesh: what each rank holds of a tensor, and whether ranks hold it.

Written on its own, so that the product's cutting can be compared with it.
"""

from __future__ import annotations

from itertools import pairwise
from math import prod
from typing import TYPE_CHECKING

import torch

from tokenspeed.placement.layout import TOKENS
from tokenspeed.placement.mesh import Axis, Degrees, Mesh

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.placement.layout import Dim, Layout

NAMES = "abcdefgh"


def mesh_of(*sizes: int) -> Mesh:
    """Return a mesh of one stage with axes a, b, ... of these sizes and no groups."""
    strides = [prod(sizes[place + 1 :]) for place in range(len(sizes))]
    axes = tuple(Axis(*given) for given in zip(NAMES, sizes, strides, strict=False))
    return Mesh(Degrees(tp=prod(sizes)), axes, {})


def held(tensor: torch.Tensor, layout: Layout, mesh: Mesh, rank: int) -> torch.Tensor:
    """Return what a rank holds of a tensor that is no summand.

    Tokens are cut as evenly as it goes, the first ranks having one more.
    """
    for place, dim in enumerate(layout.dims):
        places = _places(tensor.shape[place], dim, mesh, rank)
        tensor = tensor.index_select(place, torch.tensor(places, dtype=torch.int64))
    return tensor


def _places(count: int, dim: Dim, mesh: Mesh, rank: int) -> list[int]:
    """Return which elements of a dimension a rank holds."""
    if dim[0].size == TOKENS:
        return _share(range(count), dim[0].axes, mesh, rank)
    bounds = [0]
    for segment in dim:
        bounds.append(bounds[-1] + segment.size)
    assert bounds[-1] == count, f"a layout of {bounds[-1]} elements for {count}"
    return [
        place
        for segment, (low, high) in zip(dim, pairwise(bounds), strict=True)
        for place in _share(range(low, high), segment.axes, mesh, rank)
    ]


def _share(places: Sequence[int], axes: tuple[str, ...], mesh: Mesh, rank: int) -> list[int]:
    shares = torch.tensor(list(places), dtype=torch.int64).tensor_split(mesh.size(axes))
    return shares[mesh.place(rank, axes)].tolist()


def summand(
    tensor: torch.Tensor, layout: Layout, mesh: Mesh, rank: int, random: torch.Generator
) -> torch.Tensor:
    """Return a rank's random summand of what its peers hold together.

    Args:
        random: every rank of the peers calls with a generator of the same seed.
    """
    own = held(tensor, layout, mesh, rank)
    axes = sorted(layout.partial)
    parts = [
        torch.randn(own.shape, generator=random, dtype=torch.float64)
        for _ in range(mesh.size(axes) - 1)
    ]
    parts.append(own - sum(parts))
    return parts[mesh.place(rank, axes)] if axes else own


def assert_held(
    results: Sequence[torch.Tensor], tensor: torch.Tensor, layout: Layout, mesh: Mesh
) -> None:
    """Check that the ranks' results lie as the layout says and are the tensor.

    Args:
        results: one a rank.
    """
    for rank in range(mesh.world):
        peers = mesh.peers(rank, sorted(layout.partial))
        total = torch.stack([results[peer] for peer in peers]).sum(0)
        expected = held(tensor, layout, mesh, rank)
        torch.testing.assert_close(total.to(expected.dtype), expected, rtol=1e-9, atol=1e-9)
