"""Cuts whole tensors of a step, whose partitions have their own tokens, for each rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tokenspeed.executor.token_counts import TokenCounts
from tokenspeed.placement.layout import TOKENS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.placement.layout import Dim, Layout
    from tokenspeed.placement.mesh import Mesh


def cut_over_ranks(
    whole: torch.Tensor, layout: Layout, mesh: Mesh, partition_tokens: Sequence[int]
) -> list[torch.Tensor]:
    """Return every rank's tensor; summands are drawn, and are alike where they must be."""
    counts = TokenCounts(mesh, partition_tokens)
    axes = sorted(layout.partial)
    num_summands = mesh.size(axes)
    random = torch.Generator().manual_seed(whole.numel())
    summands = [
        torch.randn(whole.shape, dtype=whole.dtype, generator=random)
        for _ in range(num_summands - 1)
    ]
    summands.append(whole - sum(summands))
    return [
        _cut(summands[mesh.place(rank, axes)], layout, mesh, rank, counts)
        for rank in range(mesh.world)
    ]


def _cut(
    x: torch.Tensor, layout: Layout, mesh: Mesh, rank: int, counts: TokenCounts
) -> torch.Tensor:
    for place, dim in enumerate(layout.dims):
        x = x.index_select(place, torch.tensor(_kept(dim, mesh, rank, counts), dtype=torch.int64))
    return x


def _kept(dim: Dim, mesh: Mesh, rank: int, counts: TokenCounts) -> list[int]:
    """Return the elements of a dimension that a rank has."""
    kept: list[int] = []
    start = 0
    for segment in dim:
        size = counts.local((), rank) if segment.size == TOKENS else segment.size
        own = range(start, start + size)
        for index in range(len(segment.axes)):
            axes = segment.axes[: index + 1]
            place = mesh.place(rank, axes[-1:])
            if segment.size == TOKENS:
                sizes = counts.sizes(axes, axes[-1:], rank)
            else:
                ranks = mesh.size(axes[-1:])
                sizes = [len(own) // ranks] * ranks
            own = own[sum(sizes[:place]) : sum(sizes[: place + 1])]
        kept += own
        start += size
    return kept
