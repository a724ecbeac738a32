"""Experts that move between ranks while requests run: the tokens are those of one rank."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.core.executor.test_placed_models import EXCHANGING, decoded
from tests.support.placed_runs import check_logits, placed_logits
from tests.support.traced_models import even, model_class, random_weights

from tokenspeed.placement.compiled import compile_model
from tokenspeed.placement.cost import CostModel
from tokenspeed.placement.expert_load import ExpertLoad
from tokenspeed.placement.mesh import Degrees, build_mesh

MESHES = {
    "ep2": Degrees(ep=2),
    "tp4 ep2": Degrees(tp=4, ep=2),
    "dp2 ep4": Degrees(tp=2, dp=2, ep=4),
}
INTERVAL = 2
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
        balance_steps=INTERVAL,
        loads=loads,
    )
    check_logits(plain, ranks, degrees)
    assert all(load == loads[0] for load in loads.values())
    assert loads[0].moved > 0
    looks = 0
    for index, counts in enumerate(loads[0].counts.values()):
        own_turn = index * INTERVAL // len(loads[0].counts)
        turns = [step for step in range(1, len(plain.fed)) if step % INTERVAL == own_turn]
        tokens = sum(len(own) for fed in plain.fed[: turns[-1]] for _, own in fed)
        assert sum(counts) == tokens * config["num_experts_per_tok"]
        looks += len(turns)
    assert loads[0].times == looks
