"""The comparison itself: what it catches, and which cases a domain gives."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from tokenspeed.contracts.capability import unmet_clauses
from tokenspeed.contracts.kernel import Domain, KernelOffer, Operator
from tokenspeed.contracts.registration import Offer
from tokenspeed.contracts.sampler import SampleResult
from tokenspeed.ops import OPERATORS
from tokenspeed.ops.alone import depends_on_batch
from tokenspeed.ops.backends import ADAPTERS, implementation, outcomes
from tokenspeed.ops.compare import cases_within, compare, steps_outside
from tokenspeed.ops.compare_draws import draws_error
from tokenspeed.ops.sampling_batches import repeated


def errors(name: str, kernel: Any) -> dict[str, float]:
    offer = KernelOffer(name, "planted", lambda: kernel)
    found = outcomes(OPERATORS[name], offer, Domain(seed=3))
    return {outcome.case: outcome.error for outcome in found}


@pytest.mark.parametrize(
    "operator",
    [item for item in OPERATORS.values() if item.slot == "operator"],
    ids=lambda operator: operator.name,
)
def test_a_definition_agrees_with_itself_in_float32(operator: Operator) -> None:
    for case in cases_within(operator, Domain(seed=5)):
        if operator.name not in ("linear_attention.delta_gates", "kda.gates"):
            outcome = compare(operator, operator.signature, case, dtype="float32")
            assert outcome.error < 40, outcome


def test_a_kernel_that_is_wrong_in_one_case_is_caught_there() -> None:
    right = OPERATORS["activation.silu_mul"].signature
    found = errors("activation.silu_mul", lambda x: right(x) + (x.shape[0] == 17))
    assert [name for name, error in found.items() if error > 1] == ["17 rows of 256"]


def test_a_kernel_that_overwrites_its_input_is_caught() -> None:
    right = OPERATORS["norm.rms"].signature
    found = errors("norm.rms", lambda x, weight, *, eps: right(x.mul_(1.5), weight, eps=eps))
    assert max(found.values()) == math.inf


def test_scratch_may_be_overwritten_where_the_operator_says_so() -> None:
    right = OPERATORS["activation.sigmoid_mul"].signature

    def kernel(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        out = right(x, gate)
        x.fill_(7.0)
        return out

    assert max(errors("activation.sigmoid_mul", kernel).values()) <= 1


def test_a_state_that_is_not_written_is_caught() -> None:
    right = OPERATORS["conv.causal_silu"].signature

    def kernel(x: Any, weight: Any, state: Any, *rest: Any) -> torch.Tensor:
        out: torch.Tensor = right(x, weight, state.clone(), *rest)
        return out

    found = errors("conv.causal_silu", kernel)
    assert all(error > 1 for name, error in found.items() if name != "no rows")


@pytest.mark.parametrize(
    "damage", [lambda x: x[..., :-1], lambda x: x.double(), lambda x: x.long(), lambda x: (x, x)]
)
def test_other_shapes_dtypes_and_counts_are_caught(damage: Any) -> None:
    right = OPERATORS["activation.silu_mul"].signature
    found = errors("activation.silu_mul", lambda x: damage(right(x)))
    assert set(found.values()) == {math.inf}


def test_nan_where_a_number_belongs_is_caught() -> None:
    found = errors("activation.silu_mul", lambda x: x.chunk(2, -1)[0] * torch.nan)
    assert all(error == math.inf for name, error in found.items() if not name.startswith("0 "))


def test_cases_are_drawn_for_what_is_declared() -> None:
    rotary, paged = OPERATORS["rotary.apply"], OPERATORS["attention.paged"]
    declared = {"head_dim": (192,), "block_tokens": (64,), "gqa_ratio": (4,)}
    for operator in (rotary, paged):
        found = list(cases_within(operator, Domain(traits=declared)))
        assert found
        assert {case.traits["head_dim"] for case in found} == {192}
    paged_cases = list(cases_within(paged, Domain(traits=declared)))
    assert {case.args[2].block_tokens for case in paged_cases} == {64}
    assert not any(case.traits.get("window") for case in paged_cases)
    assert list(cases_within(rotary, Domain(traits={}))) == []


def test_block_ends_are_met_at_every_block_size() -> None:
    paged = OPERATORS["attention.paged"]
    for block_tokens in (16, 64, 128):
        declared = {"head_dim": (8,), "block_tokens": (block_tokens,)}
        lengths = {
            int(context) % block_tokens
            for case in cases_within(paged, Domain(traits=declared))
            for context in case.args[2].context_tokens
        }
        assert {block_tokens - 2, block_tokens - 1, 0, 1} <= lengths


def test_each_step_outside_fails_exactly_its_clause() -> None:
    declared = {"device": ("*",), "dtype": ("float32",), "head_dim": (64, 128), "sinks": (True,)}
    request = {"device": "cpu", "dtype": "float32", "head_dim": 64}
    steps = dict(steps_outside(declared, request))
    assert {"dtype", "head_dim", "window", "softcap", "kv_dtype"} <= set(steps)
    assert not {"device", "sinks"} & set(steps)
    for trait, outside in steps.items():
        assert [clause.id for clause in unmet_clauses(outside, declared)] == [f"trait.{trait}"]


def test_a_sampler_that_leans_to_one_token_is_caught() -> None:
    class Skewed:
        def __init__(self, **options: Any) -> None:
            pass

        def sample(self, logits: torch.Tensor, batch: Any) -> SampleResult:
            operator = OPERATORS["sampling.distribution"]
            probs = operator.signature(logits[:1].double(), repeated(batch, 0, 1))[0]
            probs[int(probs.argmax())] *= 1.5
            random = torch.Generator().manual_seed(1)
            tokens = torch.multinomial(probs, len(logits), replacement=True, generator=random)
            return SampleResult(tokens, torch.zeros(len(logits), dtype=torch.bool))

    operator = OPERATORS["sampling.distribution"]
    found = {
        outcome.case: outcome.error
        for outcome in outcomes(operator, Offer("sampler", "skewed", Skewed), Domain(seed=1))
    }
    assert {name for name, error in found.items() if error > 1} >= {"plain", "min_p", "bias"}
    assert found["greedy"] <= 1


def test_a_kernel_whose_rows_feel_each_other_is_caught() -> None:
    operator = OPERATORS["norm.rms"]

    def leaning(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
        out: torch.Tensor = operator.signature(x, weight, eps=eps)
        return out + 1e-7 * x.shape[0]

    for case in cases_within(operator, Domain(seed=2)):
        assert depends_on_batch(operator, operator.signature, case) == ""
        if case.args[0].shape[0] > 1:
            assert depends_on_batch(operator, leaning, case).startswith("result 0 of tokens 0")


def test_an_impossible_token_is_no_matter_of_chance() -> None:
    counts, expected = torch.tensor([999.0, 1.0]), torch.tensor([1.0, 0.0])
    assert draws_error(counts, expected)[0] == math.inf


def test_every_backend_operator_has_an_adapter() -> None:
    of_slots = {name for name, operator in OPERATORS.items() if operator.slot != "operator"}
    assert of_slots - {"sampling.distribution"} == set(ADAPTERS)


def test_an_operator_without_an_adapter_is_refused() -> None:
    stranger = Operator("acme.fft", lambda x: x, {}, slot="attention")
    with pytest.raises(ValueError, match=r"acme\.fft of slot attention"):
        implementation(stranger, Offer("attention", "x", len))
