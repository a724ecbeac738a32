"""The reference MoE backends: layers do not mix, nor do rows; values are in test_kernels.py."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tokenspeed.contracts.moe import ExpertGroup, ExpertWeights, Routing
from tokenspeed_reference import offers

OFFERS = {offer.name: offer for offer in offers.moe_offers()}


def load(name: str, dtype: torch.dtype, **changes: Any) -> Any:
    group = ExpertGroup("experts", (0,), 4, 8, 5, Routing(2), **changes)
    return OFFERS[name].load(group=group, dtype=dtype, device=torch.device("cpu"))


@pytest.mark.parametrize("name", OFFERS)
def test_no_tokens_give_no_rows(name: str) -> None:
    backend = load(name, torch.float32)
    prepared = backend.prepare(ExpertWeights(torch.ones(4, 10, 8), torch.ones(4, 8, 5)))
    chosen = torch.zeros(0, 2, dtype=torch.int64)
    assert backend.forward(torch.zeros(0, 8), chosen, torch.zeros(0, 2), prepared).shape == (0, 8)


def test_layers_of_one_backend_do_not_mix() -> None:
    backend = load("plain", torch.float32)
    layers = [
        backend.prepare(ExpertWeights(torch.ones(4, 10, 8), torch.full((4, 8, 5), float(value))))
        for value in (1, 2)
    ]
    chosen = torch.tensor([[0, 1]])
    one, two = (
        backend.forward(torch.ones(1, 8), chosen, torch.ones(1, 2), layer) for layer in layers
    )
    torch.testing.assert_close(two, 2 * one)


def test_the_rowwise_backend_is_bitwise_the_same_in_every_batch() -> None:
    assert OFFERS["rowwise"].requires["deterministic"] == (True,)
    assert OFFERS["plain"].requires["deterministic"] == (False,)
    random = torch.Generator().manual_seed(3)
    backend = load("rowwise", torch.float32)
    weights = (torch.randn(4, 64, 32, generator=random), torch.randn(4, 32, 32, generator=random))
    prepared = backend.prepare(ExpertWeights(*weights))
    x = torch.randn(33, 32, generator=random)
    chosen = torch.rand(33, 4, generator=random).argsort(-1)[:, :2]
    together = backend.forward(x, chosen, torch.ones(33, 2), prepared)
    for row in range(33):
        at = slice(row, row + 1)
        alone = backend.forward(x[at], chosen[at], torch.ones(1, 2), prepared)
        assert torch.equal(alone, together[at])


@pytest.mark.parametrize("name", OFFERS)
def test_rows_that_move_take_their_experts_along(name: str) -> None:
    backend = load(name, torch.float32, bias=True)
    random = torch.Generator().manual_seed(5)
    shapes = ((4, 10, 8), (4, 8, 5), (4, 10), (4, 8))
    weights = ExpertWeights(*(torch.randn(shape, generator=random) for shape in shapes))
    prepared = backend.prepare(weights)
    x, share = torch.randn(6, 8, generator=random), torch.rand(6, 2, generator=random)
    chosen = torch.rand(6, 4, generator=random).argsort(-1)[:, :2]
    before = backend.forward(x, chosen, share, prepared)
    for tensor in backend.expert_tensors(prepared):
        tensor[[3, 1, 0, 2]] = tensor.clone()
    moved = torch.tensor([3, 1, 0, 2])
    torch.testing.assert_close(backend.forward(x, moved[chosen], share, prepared), before)
