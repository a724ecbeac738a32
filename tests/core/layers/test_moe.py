"""Routed experts as a layer: weights reach the backend once, whole, and routing may be fused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from tests.support.model_contexts import definition_context, plain
from tests.support.moe_backends import DefinitionExperts

from tokenspeed.contracts.moe import ExpertGroup, ExpertWeights, Routing
from tokenspeed.layers import Experts, MoE
from tokenspeed.ops.moe import experts as experts_operator
from tokenspeed.ops.moe import route

GROUP = ExpertGroup("experts", (0,), 3, 4, 5, Routing(2, "sigmoid", scale=1.5))
RANDOM = torch.Generator().manual_seed(11)


class FusingExperts(DefinitionExperts):
    """Chooses the experts itself, as its group says."""

    fuses_routing = True

    def __init__(self, routing: Routing) -> None:
        super().__init__()
        self.routing = routing

    def forward(self, *args: Any) -> torch.Tensor:
        """Never called."""
        raise NotImplementedError

    def route_and_forward(
        self, x_TD: torch.Tensor, logits_TE: torch.Tensor, prepared: object
    ) -> torch.Tensor:
        """Evaluate both definitions."""
        weights_TX, experts_TX = route.signature(logits_TE, routing=self.routing)
        return super().forward(x_TD, experts_TX, weights_TX, prepared)


class Noting(DefinitionExperts):
    """Notes what it was given to prepare."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[ExpertWeights] = []

    def prepare(self, weights: ExpertWeights) -> object:
        """Note and keep."""
        self.seen.append(weights)
        return weights


def layer_with(backend: Any, group: ExpertGroup = GROUP, **options: Any) -> tuple[Any, MoE]:
    context = replace(definition_context(), moe={"experts": backend})
    return context, MoE(context, Experts(context, group), **options)


def fill(layer: MoE) -> dict[str, torch.Tensor]:
    """Give a layer random tensors and return them by name."""
    given = {}
    for name, slot in layer.weight_slots("mlp"):
        given[name] = torch.randn(slot.shape, generator=RANDOM)
        slot.accept(plain(given[name]))
    return given


def test_the_layer_is_router_route_and_experts() -> None:
    _, layer = layer_with(DefinitionExperts())
    given = fill(layer)
    x = torch.randn(7, 4, generator=RANDOM)
    weights, chosen = route.signature(x @ given["mlp.gate.weight"].T, routing=GROUP.routing)
    parts = [
        torch.stack([given[f"mlp.experts.{e}.{part}_proj.weight"] for e in range(3)])
        for part in ("gate", "up", "down")
    ]
    gate_up = torch.cat(parts[:2], dim=1)
    wanted = experts_operator.signature(x, chosen, weights, gate_up, parts[2])
    torch.testing.assert_close(layer(x), wanted)


def test_a_backend_that_fuses_routing_gives_the_same() -> None:
    _, plain_layer = layer_with(DefinitionExperts())
    given = fill(plain_layer)
    context, fused = layer_with(FusingExperts(GROUP.routing))
    for name, slot in fused.weight_slots("mlp"):
        slot.accept(plain(given[name]))
    x = torch.randn(6, 4, generator=RANDOM)
    assert torch.equal(fused(x), plain_layer(x))
    assert "moe.route" not in [name for name, _ in context.kernels.bound]


@pytest.mark.parametrize("reverse", [False, True])
def test_a_backend_prepares_a_layer_once_when_its_last_tensor_has_come(reverse: bool) -> None:
    backend = Noting()
    _, layer = layer_with(backend)
    slots = [slot for name, slot in layer.weight_slots("mlp") if "experts" in name]
    for slot in reversed(slots) if reverse else slots:
        assert backend.seen == []
        slot.accept(plain(torch.randn(slot.shape, generator=RANDOM)))
    (weights,) = backend.seen
    assert weights.gate_up_EFD.shape == (3, 10, 4)
    assert weights.down_EDF.shape == (3, 4, 5)
    assert weights.gate_up_bias_EF is weights.down_bias_ED is None
    assert weights.gate_up_EFD.is_contiguous()
    assert weights.down_EDF.is_contiguous()


def test_a_request_says_what_differs_from_the_usual() -> None:
    traits = replace(GROUP, routing=Routing(2, groups=4)).traits()
    assert traits["routing"] == "softmax_grouped"
    assert GROUP.traits()["routing"] == "sigmoid"
    assert GROUP.traits()["expert_gate"] == "silu"
