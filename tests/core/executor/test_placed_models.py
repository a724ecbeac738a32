"""Every architecture on every kind of mesh: its ranks' greedy tokens are those of one rank.

Ranks are threads; prompts are prefilled in chunks beside decodes, float32, reference plugin. Every
rank is fed what one rank decoded, so that a first difference is not hidden by what follows it.
"""

from __future__ import annotations

from functools import cache

import pytest
import torch
from tests.support.placed_runs import Noted, placed_logits, plain_run
from tests.support.traced_models import even, model_class, random_weights

from tokenspeed.placement.mesh import Degrees
from tokenspeed_reference.communicator import ThreadCommunicator

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
    ranks = placed_logits(model_class(config), config, random_weights, plain, degrees)
    assert_same(plain, ranks, degrees)


def assert_same(plain: Noted, ranks: list[list[list[torch.Tensor]]], degrees: Degrees) -> None:
    """Check the logits of every rank of the last stage, and that they name the same tokens."""
    last_stage = ranks[: degrees.stage_ranks]
    partition_ranks = degrees.tp * degrees.cp
    for rank, steps in enumerate(last_stage):
        partition = rank // partition_ranks % degrees.dp
        for fed, wanted, got in zip(plain.fed, plain.logits, steps, strict=True):
            own = [
                logits
                for (number, _), logits in zip(fed, wanted, strict=True)
                if number % degrees.dp == partition
            ]
            assert len(own) == len(got)
            for one, other in zip(own, got, strict=True):
                torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-4)
                assert torch.equal(other.argmax(-1), one.argmax(-1))
