"""Edges of the elementwise kernels that their operators' cases miss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from tests.support.portable import offers_of

from tokenspeed.ops import OPERATORS
from tokenspeed.ops.alone import depends_on_batch
from tokenspeed.ops.backends import implementation
from tokenspeed.ops.compare import cases_within, compare
from tokenspeed_sdk import Case, Domain, KernelOffer
from tokenspeed_sdk.portable.elementwise import norm, rotary, rows

if TYPE_CHECKING:
    from collections.abc import Callable

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
OFFERS = {
    offer.operator: offer
    for family in ("elementwise", "cache")
    for _, offer in offers_of(family)
    if isinstance(offer, KernelOffer)
}


def kernel(operator: str) -> Callable[..., Any]:
    return implementation(OPERATORS[operator], OFFERS[operator])


def agrees(operator: str, *args: Any, **options: Any) -> None:
    case = Case("edge", args, options)
    dtype = str(args[0].dtype).removeprefix("torch.")
    outcome = compare(OPERATORS[operator], kernel(operator), case, dtype=dtype, device=DEVICE)
    assert outcome.agrees, outcome


@pytest.mark.parametrize("features", [1023, 1024, 1025, 4096, 7168])
def test_rows_around_the_sizes_of_a_program_are_normalised(features: int) -> None:
    x = torch.randn(2, features)
    agrees("norm.rms", x, torch.randn(features), eps=1e-5)
    agrees("norm.add_rms", x, x * 3, torch.randn(features), eps=1e-5)


@pytest.mark.parametrize(
    "dtype",
    [
        torch.float16,
        pytest.param(
            torch.bfloat16,
            marks=pytest.mark.skipif(DEVICE == "cpu", reason="the interpreter truncates bfloat16"),
        ),
    ],
)
def test_the_sum_is_rounded_as_torch_rounds_and_then_normalised(dtype: torch.dtype) -> None:
    x, residual = torch.randn(5, 130).to(dtype), torch.randn(5, 130).to(dtype)
    weight = torch.randn(130).to(dtype)
    arguments = [item.to(DEVICE) for item in (x, residual, weight)]
    normed, total = norm.add_rms_norm(*arguments, eps=1e-6)
    assert total.cpu().equal(x + residual)
    assert normed.equal(norm.rms_norm(total, arguments[2], eps=1e-6))


def test_more_axes_than_heads_are_normalised() -> None:
    x = torch.randn(2, 3, 4, 16)
    agrees("norm.rms", x, torch.randn(16), eps=1e-5)
    agrees("norm.rms", x[0, 0, 0], torch.randn(16), eps=1e-5)
    agrees("norm.rms", x.transpose(0, 1), torch.randn(16), eps=1e-5)


@pytest.mark.parametrize("features", [1023, 1025, 2048])
def test_gates_and_elements_around_the_sizes_of_a_program(features: int) -> None:
    x = torch.randn(2, 2 * features)
    agrees("activation.silu_mul", x)
    agrees("activation.softcap", x, cap=0.7)
    agrees("activation.sigmoid_mul", x, x.flip(0))
    agrees("moe.add_shared", x, x.flip(0), torch.randn(2, 1))


def test_soft_caps_of_small_numbers_do_not_cancel() -> None:
    x = torch.logspace(-6, 2, 200)[None].to(DEVICE)
    exact = (x.double() / 50).tanh() * 50
    got = kernel("activation.softcap")(x, cap=50.0).double()
    assert float(((got - exact) / exact).abs().max()) < 1e-6


def test_rotation_is_in_place_and_leaves_other_heads_and_dims() -> None:
    whole = torch.randn(3, 7, 20)
    x = whole.clone().to(DEVICE)
    angle = torch.randn(3, 1, 6)
    cos, sin = angle.cos().repeat(1, 1, 2), torch.cat([-angle.sin(), angle.sin()], -1)
    turned = rotary.apply_rotary(x[:, 2:5], cos.to(DEVICE), sin.to(DEVICE))
    assert turned.data_ptr() == x[:, 2:5].data_ptr()
    changed = x.cpu() != whole
    assert not changed[:, :2].any()
    assert not changed[:, 5:].any()
    assert not changed[..., 12:].any()
    assert changed[:, 2:5, :12].all()


def test_rows_far_from_the_table_and_the_first_are_found_by_64_bits() -> None:
    words = torch.tensor([2**31 - 1, -(2**31), 2**40, 1])
    table = torch.randn(3, 5)
    got = rows.embedding(words.to(DEVICE), table.to(DEVICE)).cpu()
    assert got.equal(torch.cat([torch.zeros(3, 5), table[1:2]]))


def test_row_offsets_beyond_32_bits_are_64_bit() -> None:
    # Two rows 4.5 GiB apart: the pages between them are never touched.
    distance = 2**30 + 2**27
    x = torch.empty(distance + 64, device=DEVICE).as_strided((2, 64), (distance, 1))
    x.copy_(torch.randn(2, 64))
    weight = torch.ones(64, device=DEVICE)
    wanted = norm.rms_norm(x.contiguous(), weight, eps=1e-5)
    assert norm.rms_norm(x, weight, eps=1e-5).equal(wanted)


@pytest.mark.parametrize("operator", [name for name in OFFERS if OPERATORS[name].tokens])
def test_a_token_is_computed_the_same_in_every_batch(operator: str) -> None:
    declared = OPERATORS[operator]
    for case in cases_within(declared, Domain("float32", OFFERS[operator].requires, 3)):
        if sum(item.numel() for item in _tensors(case)) < 2000:
            assert depends_on_batch(declared, kernel(operator), case, device=DEVICE) == ""


def _tensors(case: Case) -> list[torch.Tensor]:
    return [item for item in case.args if isinstance(item, torch.Tensor)]
