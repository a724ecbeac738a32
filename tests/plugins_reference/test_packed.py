"""Packed kernels agree with the float64 meaning of the stored bytes."""

from __future__ import annotations

import pytest
import torch

from tokenspeed.contracts.kernel import KernelOffer
from tokenspeed.ops import OPERATORS, packing
from tokenspeed_reference import offers

LINEARS = [offer for offer in offers.kernel_offers() if offer.operator == "linear.packed"]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("name", packing.LAYOUTS)
@pytest.mark.parametrize("offer", LINEARS, ids=lambda offer: offer.name)
def test_product_is_precise_on_average(offer: KernelOffer, name: str) -> None:
    weight = packing.random_weight(name, (256, 1024), generator(1))
    x = torch.randn(8, 1024, generator=generator(2)).bfloat16().float()
    expected = OPERATORS["linear.packed"].signature(weight, None)(x.double())
    error = (offer.load()(weight, None)(x).double() - expected).square().mean().sqrt()
    # Random bytes give q6_k neighbouring scales that differ by up to 100 times, unlike weights.
    bound = 1e-2 if name == "q6_k" else 5e-3
    assert error <= bound * expected.square().mean().sqrt()


def test_native_product_of_a_row_does_not_depend_on_the_batch() -> None:
    load = next(offer for offer in LINEARS if offer.name == "packed_linear_cpu").load()
    multiply = load(packing.random_weight("q4_1", (192, 512), generator(1)), None)
    x = torch.randn(40, 512, generator=generator(2))
    together = multiply(x)
    for rows in (slice(0, 1), slice(5, 8), slice(20, 37)):
        assert torch.equal(multiply(x[rows]), together[rows])


@pytest.mark.parametrize("name", packing.LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_embedding_rows_are_exact_and_zeros_outside_of_the_table(
    name: str, dtype: torch.dtype
) -> None:
    offer = next(offer for offer in offers.kernel_offers() if offer.operator == "embedding.packed")
    weight = packing.random_weight(name, (20, 512), generator(4))
    ids = torch.tensor([3, 0, 19, -4, 99, 3])
    got = offer.load()(weight, dtype)(ids)
    inside = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 1.0])
    expected = (packing.decode(weight)[ids.clamp(0, 19)] * inside[:, None]).float().to(dtype)
    assert got.dtype == dtype
    torch.testing.assert_close(
        got, expected, rtol=1e-6 if dtype == torch.float32 else 1e-2, atol=1e-6
    )
