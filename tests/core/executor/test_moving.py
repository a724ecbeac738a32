"""Moves on a mesh of threads: every path between layouts ends where cutting the whole does."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest
import torch
from tests.support.rank_threads import on_ranks
from tests.support.step_tensors import cut_over_ranks

from tokenspeed.executor.moving import change_of
from tokenspeed.executor.token_counts import TokenCounts
from tokenspeed.placement.cost import CostModel
from tokenspeed.placement.layout import TOKENS, Layout, Segment
from tokenspeed.placement.mesh import Degrees, build_mesh
from tokenspeed.placement.moves import Mover

if TYPE_CHECKING:
    from tokenspeed.executor.connections import GroupConnections
    from tokenspeed.placement.mesh import Mesh

PARTS = ((TOKENS,), (8, 4), (12,))
MESHES = (Degrees(tp=2), Degrees(tp=4), Degrees(tp=2, dp=2), Degrees(dp=4), Degrees(tp=3, ep=6))


def draw_layout(mesh: Mesh, draw: random.Random) -> Layout:
    """Each axis cuts the tokens, cuts one segment, has summands, or does nothing."""
    tokens: list[str] = []
    cuts: dict[tuple[int, int], list[str]] = {}
    partial = set()
    for axis in mesh.axes:
        what = draw.choice(("tokens", "segment", "summands", "nothing"))
        if what == "tokens":
            tokens.append(axis.name)
        elif what == "summands":
            partial.add(axis.name)
        elif what == "segment":
            place = draw.choice(((1, 0), (1, 1), (2, 0)))
            own = cuts.setdefault(place, [])
            if PARTS[place[0]][place[1]] % mesh.size([*own, axis.name]) == 0:
                own.append(axis.name)
    dims = tuple(
        tuple(
            Segment(size, tuple(tokens) if size == TOKENS else tuple(cuts.get((dim, index), ())))
            for index, size in enumerate(sizes)
        )
        for dim, sizes in enumerate(PARTS)
    )
    return Layout(dims, frozenset(partial))


@pytest.mark.parametrize("degrees", MESHES, ids=str)
def test_every_path_ends_where_cutting_the_whole_does(degrees: Degrees) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    draw = random.Random(seed)
    mesh = build_mesh(degrees)
    mover = Mover(mesh, CostModel(), 64)
    moved = 0
    for _ in range(30):
        before, after = draw_layout(mesh, draw), draw_layout(mesh, draw)
        path = mover.path(before, after, 4)
        if path is None:
            continue
        tokens = [draw.randrange(6) for _ in range(degrees.dp)]
        whole = torch.randn(sum(tokens), 12, 12, dtype=torch.float64)
        given = cut_over_ranks(whole, before, mesh, tokens)
        wanted = cut_over_ranks(whole, after, mesh, tokens)
        counts = TokenCounts(mesh, tokens)

        def work(rank: int, connections: GroupConnections) -> torch.Tensor:
            x = given[rank]  # noqa: B023
            for step in path.steps:  # noqa: B023
                change = change_of(step, mesh, rank, connections.over(step.axes))
                x = change(x, counts)  # noqa: B023
            return x

        got = on_ranks(mesh, work)
        moved += len(path.steps)
        axes = sorted(after.partial)
        for rank in range(mesh.world):
            peers = mesh.peers(rank, axes)
            one, other = (sum(tensors[peer] for peer in peers) for tensors in (got, wanted))
            torch.testing.assert_close(one, other, msg=f"{before} to {after}, rank {rank}")
    assert moved > 10
