"""Routing and experts: known values, and the published variants as transformers has them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tokenspeed.ops.moe import ClampedSwiGLU, Routing, add_shared, experts, route
from tokenspeed_reference.kernels import moe as kernels

LOGITS = torch.randn(50, 16, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def test_softmax_over_the_chosen_logits_is_the_normalised_softmax() -> None:
    weights, chosen = route.signature(LOGITS, routing=Routing(4))
    best = LOGITS.topk(4)
    assert torch.equal(chosen, best.indices)
    torch.testing.assert_close(weights, best.values.softmax(-1))


def test_weights_that_are_not_normalised_are_shares_of_all_experts() -> None:
    weights, chosen = route.signature(LOGITS, routing=Routing(4, normalise=False))
    torch.testing.assert_close(weights, LOGITS.softmax(-1).gather(-1, chosen))


def test_a_bias_chooses_and_does_not_weigh() -> None:
    bias = torch.zeros(16, dtype=torch.float64)
    bias[5] = 100.0
    weights, chosen = route.signature(LOGITS, bias, routing=Routing(1, "sigmoid", normalise=False))
    assert set(chosen.flatten().tolist()) == {5}
    torch.testing.assert_close(weights[:, 0], LOGITS[:, 5].sigmoid())


@pytest.mark.parametrize("choose", [route.signature, kernels.route])
def test_the_lower_number_wins_a_tie(choose: Any) -> None:
    for routing in (Routing(2), Routing(2, "sigmoid", groups=4, top_groups=2, group_best=2)):
        _, chosen = choose(torch.ones(3, 16), routing=routing)
        assert chosen.tolist() == [[0, 1]] * 3


@pytest.mark.parametrize("choose", [route.signature, kernels.route])
def test_group_limited_sigmoid_routing_is_deepseeks(choose: Any) -> None:
    from transformers import DeepseekV3Config
    from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter

    config = DeepseekV3Config(
        hidden_size=16, n_routed_experts=16, num_experts_per_tok=3, n_group=4, topk_group=2
    )
    reference = DeepseekV3TopkRouter(config)
    reference.weight.data = torch.eye(16)
    bias = reference.e_score_correction_bias
    bias.copy_(torch.randn(16, generator=torch.Generator().manual_seed(5)))
    with torch.no_grad():
        logits, weights, chosen = reference(LOGITS.float())
    routing = Routing(
        3,
        "sigmoid",
        normalise=config.norm_topk_prob,
        groups=4,
        top_groups=2,
        group_best=2,
        scale=config.routed_scaling_factor,
    )
    got_weights, got = choose(logits, bias, routing=routing)
    order, got_order = chosen.argsort(-1), got.argsort(-1)
    assert torch.equal(chosen.gather(-1, order), got.gather(-1, got_order))
    torch.testing.assert_close(weights.gather(-1, order), got_weights.gather(-1, got_order))


def test_the_clamped_gate_of_known_values() -> None:
    one = torch.ones(1, 1, dtype=torch.float64)
    gate_up = torch.tensor([[[9.0], [-9.0]]], dtype=torch.float64)
    down = torch.full((1, 1, 1), 2.0, dtype=torch.float64)
    chosen = torch.zeros(1, 1, dtype=torch.int64)
    args = (one, chosen, 0.5 * one, gate_up, down)
    got = experts.signature(*args, clamped=ClampedSwiGLU(alpha=1.0, limit=3.0))
    silu_of_3 = 3 / (1 + torch.tensor(-3.0).exp().item())
    assert got.item() == pytest.approx(0.5 * 2 * silu_of_3 * (-3 + 1))
    assert experts.signature(*args).item() == pytest.approx(-81.0, abs=0.02)


def test_a_closed_gate_leaves_the_routed_experts() -> None:
    routed, shared = torch.full((2, 3), 5.0), torch.full((2, 3), 4.0)
    got = add_shared.signature(routed, shared, torch.tensor([[-1000.0], [0.0]]))
    assert got.tolist() == [[5.0] * 3, [7.0] * 3]
