"""Experts that move between ranks while requests run: the tokens are those of one rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.executor.test_placed_models import EXCHANGING, decoded
from tests.support.placed_runs import check_logits, placed_logits
from tests.support.traced_models import even, model_class, random_weights

from tokenspeed.executor.balancing import ExpertLoad
from tokenspeed.placement.compiled import compile_model
from tokenspeed.placement.cost import CostModel
from tokenspeed.placement.mesh import Degrees, build_mesh

MESHES = {
    "ep2": Degrees(ep=2),
    "tp4 ep2": Degrees(tp=4, ep=2),
    "dp2 ep4": Degrees(tp=2, dp=2, ep=4),
}
WAYS = {"gathered": CostModel(host_wait_us=1e6), "exchanged": EXCHANGING}


@pytest.mark.parametrize("spare", [0, 2])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("name", ["qwen3_moe", "gpt_oss"])
def test_experts_move_and_tokens_stay_the_same(name: str, mesh: str, way: str, spare: int) -> None:
    config, degrees, plain = even(name), MESHES[mesh], decoded(name)
    served = model_class(config)
    compiled = compile_model(
        served, config, build_mesh(degrees), dtype="float32", cost=WAYS[way], tokens=8
    )
    loads: dict[int, ExpertLoad] = {}
    ranks = placed_logits(
        served,
        config,
        random_weights,
        plain.fed,
        build_mesh(degrees),
        compiled=replace(compiled, spare_experts=spare),
        balance_steps=2,
        loads=loads,
    )
    check_logits(plain, ranks, degrees)
    assert all(load == loads[0] for load in loads.values())
    assert loads[0].times == (len(plain.fed) - 1) // 2
    assert loads[0].moved > 0
    _check_counts(
        loads[0], config, sum(len(own) for fed in _looked_at(plain.fed) for _, own in fed)
    )


def _looked_at(fed: list[list[tuple[int, list[int]]]]) -> list[list[tuple[int, list[int]]]]:
    """Return the steps before the last look."""
    return fed[: (len(fed) - 1) // 2 * 2]


def _check_counts(load: ExpertLoad, config: dict[str, object], tokens: int) -> None:
    """Every token was counted once for each expert that it chose."""
    for counts in load.counts.values():
        assert sum(counts) == tokens * config["num_experts_per_tok"]
