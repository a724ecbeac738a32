"""Every offer of the reference plugin agrees with its operator's float64 definition in every case
of the domain that it declares, and refuses one step outside."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tokenspeed.contracts.binding import RegisteredOffer
from tokenspeed.contracts.kernel import Domain, KernelOffer, Operator
from tokenspeed.errors import CapabilityError
from tokenspeed.kernels import select
from tokenspeed.kernels.judging import declared_traits
from tokenspeed.ops import OPERATORS
from tokenspeed.ops.alone import depends_on_batch
from tokenspeed.ops.backends import implementation, outcomes
from tokenspeed.ops.compare import cases_within, steps_outside
from tokenspeed.plugins import load_plugins
from tokenspeed_reference import offers
from tokenspeed_reference.kernels import activation

REGISTRY = load_plugins(("reference",), role="engine")
PLAIN = offers.kernel_offers()
SEED = 7


def offers_of(operator: Operator) -> tuple[RegisteredOffer[Any], ...]:
    if operator.slot == "operator":
        return REGISTRY.kernel_offers(operator.name)
    return REGISTRY.offers(operator.slot)


CLAIMS = [
    (operator, registered.offer, str(dtype))
    for operator in OPERATORS.values()
    for registered in offers_of(operator)
    for dtype in registered.offer.requires.get("dtype", offers.FLOATS)
]
NAMES = [f"{operator.name}-{offer.name}-{dtype}" for operator, offer, dtype in CLAIMS]


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_every_operator_has_an_implementation(operator: Operator) -> None:
    assert offers_of(operator)


SLOW = ("attention.paged", "moe.experts")
"""Operators whose definition takes its time: in half precisions they are compared where the slow
tests run."""


@pytest.mark.parametrize(
    ("operator", "offer", "dtype"),
    [
        pytest.param(
            *claim,
            id=name,
            marks=pytest.mark.slow if claim[0].name in SLOW and claim[2] != "float32" else (),
        )
        for claim, name in zip(CLAIMS, NAMES, strict=True)
    ],
)
def test_an_offer_agrees_with_the_definition(operator: Operator, offer: Any, dtype: str) -> None:
    domain = Domain(dtype, declared_traits(offer), SEED)
    found = list(outcomes(operator, offer, domain))
    assert len(found) > 1
    assert [outcome for outcome in found if not outcome.agrees] == []


@pytest.mark.parametrize(("operator", "offer", "dtype"), CLAIMS, ids=NAMES)
def test_an_offer_refuses_one_step_outside(operator: Operator, offer: Any, dtype: str) -> None:
    declared = declared_traits(offer)
    case = next(cases_within(operator, Domain(dtype, declared, SEED)))
    request = {"device": "cpu", "dtype": dtype, **case.traits}
    candidates = [RegisteredOffer("reference", "1", offer)]
    select(operator.name, candidates, request)
    steps = dict(steps_outside(declared, request))
    assert "dtype" in steps or "dtype" not in declared
    for trait, outside in steps.items():
        with pytest.raises(CapabilityError, match=f"trait.{trait}"):
            select(operator.name, candidates, outside)


DETERMINISTIC = [
    claim
    for claim in CLAIMS
    if claim[0].tokens or claim[0].name.endswith("packed")
    if True in declared_traits(claim[1]).get("deterministic", ())
]


@pytest.mark.parametrize(
    ("operator", "offer", "dtype"),
    DETERMINISTIC,
    ids=[f"{operator.name}-{offer.name}-{dtype}" for operator, offer, dtype in DETERMINISTIC],
)
def test_a_deterministic_offer_computes_a_row_the_same_in_every_batch(
    operator: Operator, offer: Any, dtype: str
) -> None:
    function = implementation(operator, offer)
    for case in cases_within(operator, Domain(dtype, declared_traits(offer), SEED)):
        assert depends_on_batch(operator, function, case) == "", case.name


def test_a_wrong_kernel_is_caught() -> None:
    wrong = KernelOffer("norm.rms", "wrong", lambda: lambda x, weight, *, eps: x * weight)
    found = list(outcomes(OPERATORS["norm.rms"], wrong, Domain()))
    assert max(outcome.error for outcome in found) > 1


@pytest.mark.parametrize("features", [96, 40, 7])
@pytest.mark.parametrize("name", ["linear_rowwise_any", "linear_invariant_cpu"])
def test_a_product_of_a_row_is_bitwise_the_same_in_every_batch(name: str, features: int) -> None:
    multiply = next(offer for offer in PLAIN if offer.name == name).load()
    random = torch.Generator().manual_seed(1)
    x = torch.randn(37, features, generator=random)
    weight = torch.randn(80, features, generator=random)
    together = multiply(x, weight)
    for rows in (slice(0, 1), slice(3, 9), slice(9, 37)):
        assert torch.equal(multiply(x[rows], weight), together[rows])


@pytest.mark.parametrize("features", [3, 64, 576])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("rms_norm_plain_any", torch.float32),
        ("rms_norm_plain_any", torch.bfloat16),
        ("rms_norm_cpu", torch.float32),
    ],
)
def test_norm_of_a_row_is_bitwise_the_same_in_every_batch(
    features: int, name: str, dtype: torch.dtype
) -> None:
    normalize = next(offer for offer in PLAIN if offer.name == name).load()
    random = torch.Generator().manual_seed(2)
    x = torch.randn(33, features, generator=random).to(dtype)
    weight = torch.randn(features, generator=random).to(dtype)
    together = normalize(x, weight, eps=1e-5)
    for rows in (slice(0, 1), slice(7, 8), slice(8, 33)):
        assert torch.equal(normalize(x[rows], weight, eps=1e-5), together[rows])


def test_embedding_of_an_id_outside_the_table_is_zeros() -> None:
    lookup = next(offer for offer in PLAIN if offer.operator == "embedding.lookup").load()
    table = torch.arange(1.0, 7.0).reshape(3, 2)
    got = lookup(torch.tensor([-5, 3, 99, 2]), table)
    assert got.tolist() == [[0, 0], [0, 0], [0, 0], [5, 6]]


@pytest.mark.parametrize("features", [16, 20, 40, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_gated_row_is_bitwise_the_same_alone(features: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    x_TF, gate_TF = (torch.randn(9, features, generator=random).to(dtype) for _ in range(2))
    whole = activation.sigmoid_mul(x_TF, gate_TF)
    for t in range(9):
        alone = activation.sigmoid_mul(x_TF[t : t + 1], gate_TF[t : t + 1])
        assert torch.equal(alone[0], whole[t])


@pytest.mark.parametrize("tanh", [False, True])
@pytest.mark.parametrize("features", [16, 20, 40, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_gelu_of_a_row_is_bitwise_the_same_alone(
    features: int, dtype: torch.dtype, tanh: bool
) -> None:
    random = torch.Generator().manual_seed(0)
    gate_up_TF2 = torch.randn(9, 2 * features, generator=random).to(dtype)
    whole = activation.gelu_mul(gate_up_TF2, tanh=tanh)
    for t in range(9):
        assert torch.equal(activation.gelu_mul(gate_up_TF2[t : t + 1], tanh=tanh)[0], whole[t])
