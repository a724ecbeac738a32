"""Chains of random modules on random meshes and token splits compute what one rank does."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import TYPE_CHECKING

import pytest
import torch
from tests.support.random_chains import VOCABULARY, RandomChain, build_chain
from tests.support.rank_threads import on_ranks
from tests.support.traced_models import random_weights

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.placement.compiled import compile_model
from tokenspeed.placement.mesh import Degrees, build_mesh

if TYPE_CHECKING:
    from tokenspeed.executor.connections import GroupConnections

MESHES = (
    *(Degrees(tp=2), Degrees(tp=4), Degrees(ep=4), Degrees(tp=2, ep=2), Degrees(tp=4, ep=2)),
    *(Degrees(dp=2), Degrees(tp=2, dp=2, ep=4), Degrees(tp=2, dp=2, dense_tp=4), Degrees(dp=4)),
    *(Degrees(tp=2, dense_tp=1), Degrees(tp=4, dense_tp=2, ep=4), Degrees(cp=2, tp=2)),
)
CHAINS = 3


@pytest.mark.parametrize("degrees", MESHES, ids=str)
def test_a_random_chain_computes_what_one_rank_does(degrees: Degrees) -> None:
    check_chains(CHAINS, degrees)


@pytest.mark.slow
@pytest.mark.parametrize("degrees", MESHES, ids=str)
def test_many_random_chains_compute_what_one_rank_does(degrees: Degrees) -> None:
    check_chains(60, degrees)


@pytest.mark.parametrize("seed", [43, 49])
def test_a_bias_that_every_rank_has_is_added_once(seed: int) -> None:
    check_chain(seed, Degrees(tp=2))


def check_chains(number: int, degrees: Degrees) -> None:
    """Check so many, from a random seed on."""
    first = random.randrange(1 << 30)
    for seed in range(first, first + number):
        print(f"seed {seed}")
        check_chain(seed, degrees)


def check_chain(seed: int, degrees: Degrees) -> None:
    """Build a chain, feed both, compare every rank with its partition's rows."""
    draw = random.Random(seed)
    config = {"seed": seed, "num_layers": draw.randrange(1, 6)}
    mesh = build_mesh(degrees)
    compiled = compile_model(
        RandomChain,  # type: ignore[arg-type]
        config,
        mesh,
        dtype="float32",
        tokens=draw.choice((1, 16, 4096)),
    )
    counts = [draw.randrange(7) for _ in range(degrees.dp)]
    ids = [torch.randint(VOCABULARY, (count,)) for count in counts]
    plain = build_chain(config, random_weights)
    wanted = plain.forward(torch.cat(ids), None).split_with_sizes(counts)

    def work(rank: int, connections: GroupConnections) -> list[torch.Tensor]:
        torch.set_num_threads(1)
        placed = build_chain(
            config, random_weights, compiled=compiled, rank=rank, connections=connections
        )
        own = ids[mesh.place(rank, mesh.groups[ParallelGroup.ATTN_DP])]
        step = SimpleNamespace(positions_T=torch.arange(len(own)), partition_tokens=counts)
        hidden_TD = placed.forward(own, step)
        return [hidden_TD, placed.compute_logits(hidden_TD)]

    for rank, (hidden_TD, logits_TV) in enumerate(on_ranks(mesh, work)):
        expected_TD = wanted[mesh.place(rank, mesh.groups[ParallelGroup.ATTN_DP])]
        torch.testing.assert_close(hidden_TD, expected_TD, rtol=1e-4, atol=1e-4)
        logits = plain.compute_logits(expected_TD)
        torch.testing.assert_close(logits_TV, logits, rtol=1e-3, atol=1e-3)
