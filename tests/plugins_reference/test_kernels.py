"""Every reference kernel agrees with its operator's float64 definition within the tolerance."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tokenspeed.contracts.kernel import KernelOffer, Operator
from tokenspeed.ops import OPERATORS
from tokenspeed_reference import offers
from tokenspeed_reference.kernels import activation

FLOAT32_RESULTS = ("linear_attention.delta_gates",)
PLAIN = [offer for offer in offers.kernel_offers() if not offer.operator.endswith("packed")]


def to(value: Any, dtype: torch.dtype) -> Any:
    """Convert the float tensors of a case."""
    is_float = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(dtype, copy=True) if is_float else value


def outputs(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def worst_error(offer: KernelOffer, operator: Operator, dtype: torch.dtype, seed: int) -> float:
    """Return the largest error of all cases, in units of the tolerance."""
    assert operator.cases is not None
    relative, absolute = operator.tolerance.get(str(dtype).removeprefix("torch."), (0, 1e-30))
    kernel = offer.load()
    worst = 0.0
    for args, options in operator.cases(seed):
        rounded = [to(arg, dtype) for arg in args]
        before = [to(arg, torch.float64) for arg in rounded]
        wide = [to(arg, torch.float64) for arg in rounded]
        expected = outputs(operator.signature(*wide, **options))
        got = outputs(kernel(*rounded, **options))
        float_dtype = torch.float32 if operator.name in FLOAT32_RESULTS else dtype
        assert {x.dtype for x in got} <= {float_dtype, torch.int64}
        for place in written(before, wide):
            got, expected = (*got, rounded[place]), (*expected, wide[place])
        for one, want in zip(got, expected, strict=True):
            assert one.shape == want.shape
            bound = absolute + relative * want.abs()
            worst = max(worst, float(((one.double() - want).abs() / bound).max()))
    return worst


def written(before: list[Any], after: list[Any]) -> list[int]:
    """Return which arguments a definition wrote in place."""
    return [
        place
        for place, (old, new) in enumerate(zip(before, after, strict=True))
        if isinstance(old, torch.Tensor) and not torch.equal(old, new)
    ]


@pytest.mark.parametrize(
    ("offer", "dtype"),
    [(offer, getattr(torch, str(name))) for offer in PLAIN for name in offer.requires["dtype"]],
    ids=lambda item: str(getattr(item, "name", item)),
)
def test_kernel_agrees_with_the_definition(offer: KernelOffer, dtype: torch.dtype) -> None:
    assert worst_error(offer, OPERATORS[offer.operator], dtype, seed=7) <= 1


def test_every_bindable_operator_has_a_kernel() -> None:
    offered = {offer.operator for offer in offers.kernel_offers()}
    backends = {"kv.write", "attention.paged", "sampling.distribution"}
    assert offered | backends == set(OPERATORS)


def test_a_wrong_kernel_is_caught() -> None:
    wrong = KernelOffer("norm.rms", "wrong", lambda: lambda x, weight, *, eps: x * weight)
    assert worst_error(wrong, OPERATORS["norm.rms"], torch.float32, seed=7) > 1


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


def test_embedding_reads_no_row_outside_the_table() -> None:
    lookup = next(offer for offer in PLAIN if offer.operator == "embedding.lookup").load()
    table = torch.arange(6.0).reshape(3, 2)
    assert lookup(torch.tensor([-5, 99]), table).tolist() == [[0, 1], [4, 5]]


@pytest.mark.parametrize("features", [16, 20, 40, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_gated_row_is_bitwise_the_same_alone(features: int, dtype: torch.dtype) -> None:
    random = torch.Generator().manual_seed(0)
    x_TF, gate_TF = (torch.randn(9, features, generator=random).to(dtype) for _ in range(2))
    whole = activation.sigmoid_mul(x_TF, gate_TF)
    for t in range(9):
        alone = activation.sigmoid_mul(x_TF[t : t + 1], gate_TF[t : t + 1])
        assert torch.equal(alone[0], whole[t])
