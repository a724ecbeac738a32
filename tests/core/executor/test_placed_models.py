"""Every architecture on every kind of mesh: its ranks' greedy tokens are those of one rank.

Ranks are threads; prompts are prefilled in chunks beside decodes, float32, reference plugin. Every
rank is fed what one rank decoded, so that a first difference is not hidden by what follows it.
"""

from __future__ import annotations

import uuid
from functools import cache
from typing import TYPE_CHECKING

import pytest
from tests.support.placed_runs import (
    Noted,
    check_logits,
    placed_logits,
    plain_run,
    process_logits,
)
from tests.support.traced_models import even, model_class, random_weights

from tokenspeed.placement.cost import CostModel
from tokenspeed.placement.mesh import Degrees, build_mesh
from tokenspeed_reference.communicator import ThreadCommunicator
from tokenspeed_reference.gloo import GlooCommunicator
from tokenspeed_sdk.testkit.rank_processes import Failure, RankProcesses

if TYPE_CHECKING:
    from collections.abc import Iterator

PROMPTS = [[7, 3, 9, 250, 11, 4, 4, 1], [5], [*range(30, 61)], [2, 90, 17]]
MODELS = (
    *("llama_biases_linear", "llama_tied_llama3_sharded", "qwen2", "qwen3", "qwen3_moe"),
    *("mixtral", "deepseek_v2_lite", "deepseek_v2", "deepseek_v3", "gpt_oss"),
    *("qwen3_next", "qwen3_5", "qwen3_5_moe"),
)
MESHES = {
    "tp2": Degrees(tp=2),
    "tp4": Degrees(tp=4),
    "ep2": Degrees(ep=2),
    "tp2 ep2": Degrees(tp=2, ep=2),
    "tp4 ep2": Degrees(tp=4, ep=2),
    "dp2": Degrees(dp=2),
    "dp2 ep2": Degrees(dp=2, ep=2),
    "tp2 dp2 ep4": Degrees(tp=2, dp=2, ep=4),
    "tp2 dp2 dense4": Degrees(tp=2, dp=2, dense_tp=4),
    "cp2": Degrees(cp=2),
    "tp2 cp2": Degrees(tp=2, cp=2),
    "pp2": Degrees(pp=2),
    "tp2 pp2": Degrees(tp=2, pp=2),
    "dp2 cp2": Degrees(dp=2, cp=2),
}


EXCHANGING = CostModel(host_wait_us=-1e6)
"""A wait that gives time back: tokens are exchanged wherever it is possible."""


@cache
def decoded(name: str) -> Noted:
    """What one rank does, once for all meshes."""
    config = even(name)
    served = model_class(config)
    return plain_run(served, config, random_weights, PROMPTS, num_tokens=4, chunk_tokens=12)


DENSE_EXPERTS_LATENT = ("llama_biases_linear", "qwen3_moe", "deepseek_v3")
GRID = [
    pytest.param(
        name,
        mesh,
        marks=()
        if name in DENSE_EXPERTS_LATENT or mesh in ("tp4 ep2", "tp2 dp2 ep4")
        else pytest.mark.slow,
    )
    for name in MODELS
    for mesh in MESHES
]
"""Each mesh with three architectures and each architecture with two meshes are quick enough."""


def test_without_its_sums_a_program_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ThreadCommunicator, "all_reduce", lambda self, x: x)
    with pytest.raises(AssertionError):
        test_ranks_decode_what_one_rank_does("qwen3", "tp2")


@pytest.mark.parametrize(("name", "mesh"), GRID)
def test_ranks_decode_what_one_rank_does(name: str, mesh: str) -> None:
    config, degrees = even(name), MESHES[mesh]
    plain = decoded(name)
    ranks = placed_logits(
        model_class(config), config, random_weights, plain.fed, build_mesh(degrees)
    )
    check_logits(plain, ranks, degrees)


@pytest.fixture(scope="module", params=(2, 4))
def processes(request: pytest.FixtureRequest) -> Iterator[RankProcesses]:
    """Ranks that are processes, kept for all their tests."""
    with RankProcesses(GlooCommunicator, request.param) as ranks:
        yield ranks


@pytest.mark.parametrize("name", DENSE_EXPERTS_LATENT)
def test_processes_over_gloo_decode_what_one_rank_does(processes: RankProcesses, name: str) -> None:
    plain = decoded(name)
    for mesh, degrees in MESHES.items():
        costs = (None, EXCHANGING) if degrees.ep > 1 and "moe" in name else (None,)
        for cost in costs if degrees.world == processes.size else ():
            given = [(name, degrees, uuid.uuid4().hex, plain.fed, cost)] * degrees.world
            ranks = processes.run(process_logits, given)
            failed = [item for item in ranks if isinstance(item, Failure)]
            assert not failed, f"{mesh}: {failed}"
            check_logits(plain, ranks, degrees)
