"""Tokens that go to the ranks of their experts and back: alone, and in every such architecture."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.core.executor.test_placed_models import EXCHANGING, decoded
from tests.support.placed_runs import check_logits, placed_logits
from tests.support.rank_threads import on_ranks
from tests.support.traced_models import PUBLISHED, even, model_class, random_weights

from tokenspeed.contracts.placement import ParallelGroup
from tokenspeed.executor.exchange import exchanging
from tokenspeed.placement import exchange
from tokenspeed.placement.compiled import compile_model
from tokenspeed.placement.cost import CostModel
from tokenspeed.placement.explain import explain
from tokenspeed.placement.mesh import Degrees, build_mesh
from tokenspeed.placement.program import Call
from tokenspeed.placement.trace import trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.executor.connections import GroupConnections

MODELS = (
    *("qwen3_moe", "mixtral", "deepseek_v2_lite", "deepseek_v2", "deepseek_v3", "gpt_oss"),
    *("qwen3_next", "qwen3_5_moe"),
)
MESHES = {
    "ep2": Degrees(ep=2),
    "tp2 ep2": Degrees(tp=2, ep=2),
    "tp4 ep2": Degrees(tp=4, ep=2),
    "dp2 ep2": Degrees(dp=2, ep=2),
    "tp2 dp2 ep2": Degrees(tp=2, dp=2, ep=2),
    "tp2 dp2 ep4": Degrees(tp=2, dp=2, ep=4),
    "dp2 cp2 ep4": Degrees(dp=2, cp=2, ep=4),
}
GRID = [
    pytest.param(
        name,
        mesh,
        marks=() if name == "qwen3_moe" or mesh == "tp2 dp2 ep2" else pytest.mark.slow,
    )
    for name in MODELS
    for mesh in MESHES
]


@pytest.mark.parametrize(("name", "mesh"), GRID)
def test_ranks_that_exchange_tokens_decode_what_one_rank_does(name: str, mesh: str) -> None:
    config, degrees = even(name), MESHES[mesh]
    served = model_class(config)
    compiled = compile_model(
        served, config, build_mesh(degrees), dtype="float32", cost=EXCHANGING, tokens=8
    )
    experts = [
        item
        for program in compiled.forward
        for item in program.instructions
        if isinstance(item, Call) and item.node.exchanged
    ]
    assert experts
    assert all(item.exchange is not None for item in experts)
    plain = decoded(name)
    ranks = placed_logits(
        served, config, random_weights, plain.fed, compiled.mesh, compiled=compiled
    )
    check_logits(plain, ranks, degrees)


class _Slots:
    """Two experts a rank; the result of an expert is x times its number and one, weighed."""

    num_slots = 2

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.seen: list[int] = []

    def slots_of(self, experts_TX: torch.Tensor) -> torch.Tensor:
        return experts_TX

    def at_slots(
        self, x_SD: torch.Tensor, slots_SX: torch.Tensor, weights_SX: torch.Tensor
    ) -> torch.Tensor:
        self.seen.append(len(x_SD))
        own = slots_SX // self.num_slots == self.rank
        factors = torch.where(own, (slots_SX + 1) * weights_SX, torch.zeros_like(weights_SX))
        return x_SD * factors.sum(1, keepdim=True).type_as(x_SD)


@pytest.mark.parametrize("counts", [(5, 0, 3), (0, 0, 0), (0, 7, 0), (1, 1, 1)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_each_row_goes_once_to_each_rank_it_chose(
    counts: tuple[int, ...], dtype: torch.dtype
) -> None:
    random = torch.Generator().manual_seed(sum(counts))
    x, chosen, weights = [], [], []
    for count in counts:
        x.append(torch.randn(count, 5, generator=random).to(dtype))
        order = torch.rand(count, 6, generator=random).argsort(1)
        chosen.append(order[:, :3])
        weights.append(torch.rand(count, 3, generator=random))

    def work(rank: int, connections: GroupConnections) -> tuple[torch.Tensor, list[int]]:
        slots = _Slots(rank)
        compute = exchanging(slots, connections.over(mesh.groups[ParallelGroup.MOE_EP]))
        return compute(x[rank], chosen[rank], weights[rank]), slots.seen

    mesh = build_mesh(Degrees(ep=3))
    for rank, (result, seen) in enumerate(on_ranks(mesh, work)):
        factors = ((chosen[rank] + 1) * weights[rank]).sum(1, keepdim=True)
        wanted = x[rank].float() * factors
        assert result.dtype is dtype
        tolerance = 1e-5 if dtype is torch.float32 else 5e-2
        torch.testing.assert_close(result.float(), wanted, rtol=tolerance, atol=tolerance)
        rows = sum(int((own // 2 == rank).any(1).sum()) for own in chosen)
        assert seen == [rows]


class _Counting:
    """A communicator that counts the bytes its rank sends to others, as the cost model does."""

    def __init__(self, base: Communicator) -> None:
        self.rank, self.size, self._base = base.rank, base.size, base
        self.sent = 0

    def all_to_all(
        self, x: torch.Tensor, *, send_sizes: Sequence[int], receive_sizes: Sequence[int]
    ) -> torch.Tensor:
        others = sum(send_sizes) - send_sizes[self.rank]
        self.sent += others * x[:1].nbytes
        return self._base.all_to_all(x, send_sizes=send_sizes, receive_sizes=receive_sizes)

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        self.sent += (self.size - 1) * x.nbytes
        return self._base.all_gather(x)

    def reduce_scatter(self, x: torch.Tensor) -> torch.Tensor:
        self.sent += x.nbytes * (self.size - 1) // self.size
        return self._base.reduce_scatter(x)


def test_only_the_tokens_that_are_needed_are_sent() -> None:
    ranks, experts, top_k, tokens, features = 8, 64, 2, 128, 32
    mesh = build_mesh(Degrees(ep=ranks))

    def work(
        rank: int, connections: GroupConnections
    ) -> tuple[torch.Tensor, torch.Tensor, int, int]:
        random = torch.Generator().manual_seed(rank)
        x = torch.randn(tokens, features, generator=random)
        chosen = torch.rand(tokens, experts, generator=random).argsort(1)[:, :top_k]
        weights = torch.rand(tokens, top_k, generator=random)
        group = connections.over(mesh.groups[ParallelGroup.MOE_EP])
        slots = _Slots(rank)
        slots.num_slots = experts // ranks
        exchanged, gathered = _Counting(group), _Counting(group)
        given: Any = exchanged
        apart = exchanging(slots, given)(x, chosen, weights)
        sums = slots.at_slots(*map(gathered.all_gather, (x, chosen, weights)))
        return apart, gathered.reduce_scatter(sums), exchanged.sent, gathered.sent

    expected_rows = (ranks - 1) * tokens * exchange.share_of_ranks(experts, top_k, ranks)
    row_bytes = 4 * features + 8 * top_k + 4 * top_k
    for apart, together, exchanged, gathered in on_ranks(mesh, work):
        torch.testing.assert_close(apart, together)
        assert exchanged == pytest.approx(expected_rows * (row_bytes + 4 * features), rel=0.15)
        assert exchanged < gathered / 3


def test_the_share_of_ranks_is_that_of_draws_without_preference() -> None:
    assert exchange.share_of_ranks(8, 1, 2) == pytest.approx(1 / 2)
    assert exchange.share_of_ranks(8, 2, 2) == pytest.approx(1 - 4 / 8 * 3 / 7)
    assert exchange.share_of_ranks(8, 5, 2) == 1.0
    assert exchange.share_of_ranks(256, 8, 32) == pytest.approx(0.2270, abs=1e-3)


@pytest.mark.parametrize(("tokens", "is_exchanged"), [(16, False), (8192, True)])
def test_large_steps_over_many_ranks_are_exchanged_and_small_ones_gathered(
    tokens: int, is_exchanged: bool
) -> None:
    config = {**PUBLISHED["qwen3-235b-a22b"], "num_hidden_layers": 2}
    graphs, mesh = trace(model_class(config), config), build_mesh(Degrees(tp=2, dp=4, ep=8))
    told = explain(graphs, mesh, CostModel(), tokens, model_class(config).cache_groups(config))
    kinds = {row.kind for section in told.sections for row in section.rows}
    assert ("exchange" in kinds) is is_exchanged
    assert (told.gathered_us is not None) is is_exchanged
    assert told.gathered_us is None or told.gathered_us > told.time_us
