"""Routed experts in Triton, beyond the cases of their operators."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.portable import DEVICE, portable_offers
from tests.support.triton_targets import TARGETS, compile_for

from tokenspeed.contracts.binding import RegisteredOffer
from tokenspeed.kernels import select
from tokenspeed.ops.alone import depends_on_batch
from tokenspeed.ops.backends import implementation
from tokenspeed.ops.compare import compare
from tokenspeed.ops.draw import Draw
from tokenspeed.ops.moe import experts, route
from tokenspeed_sdk import Case, Domain, ExpertGroup, ExpertWeights, Offer, Routing
from tokenspeed_sdk.portable.experts.tiles import DIRECT_TOKENS, Tiles, invariant_tiles, tiles_for

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_EXPERTS, HIDDEN, FEATURES, TOP_K = 5, 40, 24, 2
GROUP = ExpertGroup("experts", (0,), NUM_EXPERTS, HIDDEN, FEATURES, Routing(TOP_K, "sigmoid"))
MIXTRAL, QWEN3, DEEPSEEK = (2, 8), (8, 128), (8, 256)
"""(Chosen, all) experts."""


def offer(name: str) -> Offer:
    found = next(item for item in portable_offers("moe") if item.name == name)
    assert isinstance(found, Offer)
    return found


def backend(name: str = "grouped", dtype: torch.dtype = torch.float32) -> Any:
    return offer(name).load(group=GROUP, dtype=dtype, device=torch.device("cpu"))


def case_of(tokens: int, dtype: str = "float32", elsewhere: int = 1) -> Case:
    draw = Draw(Domain(dtype, seed=tokens))
    args = (
        draw.beside(tokens, HIDDEN),
        draw.distinct(NUM_EXPERTS + 2 * elsewhere, tokens, TOP_K) - elsewhere,
        draw.uniform(tokens, TOP_K).to(draw.dtype),
        draw.floats(NUM_EXPERTS, 2 * FEATURES, HIDDEN, scale=HIDDEN**-0.5),
        draw.floats(NUM_EXPERTS, HIDDEN, FEATURES, scale=FEATURES**-0.5),
    )
    return Case(f"{tokens} tokens", args)


@pytest.mark.parametrize("tokens", [33, DIRECT_TOKENS + 1, 140])
def test_steps_of_many_tokens_compute_what_the_operator_says(tokens: int) -> None:
    outcome = compare(
        experts, implementation(experts, offer("grouped")), case_of(tokens), dtype="float32"
    )
    assert outcome.agrees, outcome


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("tokens", [DIRECT_TOKENS + 1, 400])
def test_tiles_of_half_precision_compute_what_the_operator_says(tokens: int, dtype: str) -> None:
    outcome = compare(
        experts, implementation(experts, offer("grouped")), case_of(tokens, dtype), dtype=dtype
    )
    assert outcome.agrees, outcome


def test_the_invariant_backend_gives_a_token_the_same_bits_in_every_batch() -> None:
    computed = implementation(experts, offer("grouped_invariant"))
    assert depends_on_batch(experts, computed, case_of(DIRECT_TOKENS + 3)) == ""


@pytest.mark.parametrize(
    ("objective", "name"), [("latency", "grouped"), ("determinism", "grouped_invariant")]
)
def test_the_invariant_backend_is_chosen_for_determinism_alone(objective: str, name: str) -> None:
    offers = [RegisteredOffer("vendor", "1.0", item) for item in portable_offers("moe")]
    traits = {"device": DEVICE, "arch": "any", "dtype": "bfloat16", **GROUP.traits()}
    assert select("moe", offers, traits, objective=objective).winner.offer.name == name


def test_a_step_without_tokens_gives_no_rows() -> None:
    x_TD, *_ = case_of(0).args
    no = torch.empty(0, TOP_K)
    prepared = backend().prepare(ExpertWeights(*case_of(1).args[3:]))
    assert backend().forward(x_TD, no.long(), no, prepared).shape == (0, HIDDEN)


def test_fused_routing_is_routing_and_then_the_experts() -> None:
    x_TD, _, _, *weights = case_of(3).args
    logits_TE = torch.randn(3, NUM_EXPERTS, generator=torch.Generator().manual_seed(3))
    own = backend()
    weights_TX, experts_TX = route.signature(logits_TE, routing=GROUP.routing)
    prepared = own.prepare(ExpertWeights(*weights))
    torch.testing.assert_close(
        own.route_and_forward(x_TD, logits_TE, prepared),
        own.forward(x_TD, experts_TX, weights_TX, prepared),
    )


def test_an_expert_that_is_moved_computes_from_the_next_step_on() -> None:
    x_TD, _, weights_TX, *weights = case_of(3).args
    own = backend()
    prepared = own.prepare(ExpertWeights(*weights))
    experts_TX = torch.tensor([[0, 1]] * 3)
    before = own.forward(x_TD, experts_TX, weights_TX, prepared)
    for tensor in own.expert_tensors(prepared):
        tensor[3], tensor[1] = tensor[1].clone(), 0.0
    moved = own.forward(x_TD, torch.tensor([[0, 3]] * 3), weights_TX, prepared)
    torch.testing.assert_close(moved, before)


@pytest.mark.parametrize("num_tokens", [65, 300])
def test_sorting_gives_every_held_pair_one_place_in_a_tile_of_its_expert(num_tokens: int) -> None:
    from tokenspeed_sdk.portable.experts.sorting import sort_pairs

    random = torch.Generator().manual_seed(num_tokens)
    num_experts = 7
    chosen = torch.rand(num_tokens, num_experts + 4, generator=random).argsort(1)[:, :3] - 2
    chosen[: num_tokens // 2, 0] = 5  # one expert of many tiles
    tiles = Tiles(16, 32, 32, 4, 2, is_sorted=True)
    work, most_tiles = sort_pairs(chosen, num_experts, tiles)
    table, pairs = work[: 3 * most_tiles].view(3, -1).T.tolist(), work[3 * most_tiles :].tolist()
    seen: list[int] = []
    for expert, first, end in table:
        if expert < 0:
            continue
        assert 0 < end - first <= tiles.block_m
        own = pairs[first:end]
        assert {int(chosen.flatten()[pair]) for pair in own} == {expert}
        seen += own
    held = ((chosen >= 0) & (chosen < num_experts)).flatten()
    assert sorted(seen) == held.nonzero().flatten().tolist()


@pytest.mark.parametrize("tokens", [1, 16, 17, 32, 33, 64, 65, 200, 1000, 8192])
@pytest.mark.parametrize(("top_k", "num_experts"), [MIXTRAL, QWEN3, DEEPSEEK])
def test_unsorted_tiles_have_all_tokens_and_all_fit_64_kib(
    tokens: int, top_k: int, num_experts: int
) -> None:
    for is_exact in (False, True):
        chosen = tiles_for(tokens, top_k, num_experts, is_exact=is_exact)
        for tiles in (chosen, invariant_tiles(tokens, is_exact=is_exact)):
            assert tiles.is_sorted or tiles.block_m >= tokens
            stage = (tiles.block_m + tiles.block_n) * tiles.block_k * (4 if is_exact else 2)
            assert stage * (tiles.num_stages - 1) <= 64 << 10


def test_routing_takes_numbers_of_experts_that_are_no_powers_of_two() -> None:
    kernel = route_kernel()
    random = torch.Generator().manual_seed(5)
    logits_TE = torch.randn(3, 384 + 8, generator=random)[:, :384]  # rows in a wider tensor
    for routing in (Routing(8, "sigmoid"), Routing(6, groups=3, top_groups=2, group_best=2)):
        case = Case("384 experts", (logits_TE,), {"routing": routing})
        outcome = compare(route, kernel, case, dtype="float32")
        assert outcome.agrees, outcome


def test_routing_asks_for_more_than_the_best_groups_have() -> None:
    logits_TE = torch.randn(2, 8, generator=torch.Generator().manual_seed(6))
    options = {"routing": Routing(4, groups=4, top_groups=1)}
    outcome = compare(
        route, route_kernel(), Case("4 of a group of 2", (logits_TE,), options), dtype="float32"
    )
    assert outcome.agrees, outcome


@pytest.mark.filterwarnings("ignore:invalid value")  # the interpreter's, of what is padded
@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_experts_of_broken_logits_exist_and_differ(score: str) -> None:
    logits_TE = torch.full((2, 6), float("nan"))
    logits_TE[1, 2:] = -logits_TE[1, 2:]
    for routing in (Routing(4, score), Routing(4, score, groups=3, top_groups=2)):
        _, experts_TX = route_kernel()(logits_TE, routing=routing)
        assert ((experts_TX >= 0) & (experts_TX < 6)).all()
        assert all(len(set(row)) == 4 for row in experts_TX.tolist())


def test_copies_of_an_expert_take_turns_by_token_and_choices_are_counted_on() -> None:
    slots, count = kernel_of("moe_slots_triton"), kernel_of("moe_count_triton")
    random = torch.Generator().manual_seed(8)
    experts_TX = torch.rand(300, 6, generator=random).argsort(1)[:, ::2]  # of 6, not contiguous
    copies_E = torch.tensor([1, 3, 2, 1, 1, 2])
    slots_EC = torch.arange(18).view(6, 3)
    slots_TX = slots(experts_TX, slots_EC, copies_E)
    turns_TX = torch.arange(300)[:, None] % copies_E[experts_TX]
    assert slots_TX.equal(3 * experts_TX + turns_TX)
    counts_S = torch.tensor([7, 0, 0, 0, 0, 100])  # of a rank with the slots from 4 on
    assert count(slots_TX, counts_S, first=4).equal(slots_TX - 4)
    wanted = [int((slots_TX == slot).sum()) for slot in range(4, 9)]
    assert counts_S.tolist() == [7 + wanted[0], *wanted[1:], 100 + 900 - sum(wanted)]


def test_no_tokens_have_no_slots_and_count_nothing() -> None:
    none_TX, counts_S = torch.empty(0, 2, dtype=torch.int64), torch.tensor([3, 4])
    slots_EC, copies_E = torch.zeros(4, 1, dtype=torch.int64), torch.ones(4, dtype=torch.int64)
    assert kernel_of("moe_slots_triton")(none_TX, slots_EC, copies_E).shape == (0, 2)
    assert kernel_of("moe_count_triton")(none_TX, counts_S, first=0).shape == (0, 2)
    assert counts_S.tolist() == [3, 4]


def test_what_experts_in_slots_bind_may_be_captured() -> None:
    safe = {item.operator for item in portable_offers("operator") if item.graph_safe}
    assert {"moe.route", "moe.slots", "moe.count", "moe.add_shared"} <= safe


def route_kernel() -> Callable[..., Any]:
    return kernel_of("moe_route_triton")


def kernel_of(name: str) -> Callable[..., Any]:
    found = next(item for item in portable_offers("operator") if item.name == name)
    kernel: Callable[..., Any] = found.load()
    return kernel


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("tokens", [16, 32, 64, 65, 8192])
def test_products_of_bfloat16_compile_without_spilling(tokens: int, target: str) -> None:
    tiles = tiles_for(tokens, *QWEN3, is_exact=False)
    common = {
        "BY_EXPERT": tokens * QWEN3[0] >= QWEN3[1],
        "HAS_BIAS": False,
        "SORTED": tiles.is_sorted,
        "TOP_K": QWEN3[0],
        "BLOCK_M": tiles.block_m,
        "BLOCK_N": tiles.block_n,
        "BLOCK_K": tiles.block_k,
        "BLOCK_X": QWEN3[0],
        "EVEN_K": True,
        "bias_ptr": None,
        **({} if tiles.is_sorted else {"work_ptr": None}),
    }
    pointers = ("x_ptr", "w_ptr", "hidden_ptr", "weights_ptr", "out_ptr")
    counts = ("num_pairs", "num_experts", "most_tiles", "terms", "features", "x_stride")
    signature = {
        **dict.fromkeys(pointers, "*bf16"),
        **dict.fromkeys(counts, "i32"),
        **dict.fromkeys(("alpha", "limit"), "fp32"),
        "experts_ptr": "*i64",
        **({"work_ptr": "*i32"} if tiles.is_sorted else {}),
    }
    options = {"num_warps": tiles.num_warps, "num_stages": tiles.num_stages}
    module = "tokenspeed_sdk.portable.experts.products"
    for kernel, constants in (
        ("moe_gate_up_kernel", {**common, "CLAMPED": False}),
        ("moe_down_kernel", common),
    ):
        launch = compile_for(f"{module}:{kernel}", signature, constants, target, **options)
        assert launch.spilled == 0
        assert launch.shared_bytes <= (227 << 10 if target == "sm_90" else 64 << 10)
        if target == "sm_90":
            assert "cp.async.cg.shared.global" in launch.asm  # whole vectors of 16 bytes
            assert ("wgmma" if tiles.block_m >= 64 else "mma.sync") in launch.asm


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("target", TARGETS)
def test_sorting_compiles(target: str) -> None:
    counts = ("num_pairs", "num_experts", "num_chunks", "most_tiles", "tiles_each")
    signature = {**dict.fromkeys(counts, "i32"), "experts_ptr": "*i64", "work_ptr": "*i32"}
    module = "tokenspeed_sdk.portable.experts.sorting"
    for kernel, constants in (
        ("count_pairs_kernel", {"CHUNK": 128, "BINS": 256, "BLOCK_TILES": 32}),
        ("sum_chunks_kernel", {"BLOCK": 1024}),
        ("place_pairs_kernel", {"BLOCK_M": 128, "CHUNK": 128, "BINS": 256}),
    ):
        assert compile_for(f"{module}:{kernel}", signature, constants, target).spilled == 0


def test_weights_of_a_group_with_biases_are_all_moved() -> None:
    weights = ExpertWeights(*case_of(1).args[3:])
    biased = replace(
        weights,
        gate_up_bias_EF=torch.zeros(NUM_EXPERTS, 2 * FEATURES),
        down_bias_ED=torch.zeros(NUM_EXPERTS, HIDDEN),
    )
    own = backend()
    assert len(own.expert_tensors(own.prepare(weights))) == 2
    assert len(own.expert_tensors(own.prepare(biased))) == 4
