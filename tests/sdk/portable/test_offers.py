"""What the portable families offer computes what its operators say, over the cases they declare."""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

import pytest
import torch
from tests.support.portable import SLOTS, computed_by, dtypes_of, portable_offers

from tokenspeed.ops.backends import outcomes
from tokenspeed_sdk import Domain

if TYPE_CHECKING:
    from tokenspeed_sdk import KernelOffer, Offer

SEED = 7
WHOLLY_SLOW = (
    *("paged_latent", "paged_latent_invariant"),
    *("grouped_invariant", "packed_linear_triton", "moe_route_triton", "paged_triton"),
)
"""Offers that take the interpreter long; their families' own files have quick cases."""


def _is_quick(offer: Offer | KernelOffer, dtype: str) -> bool:
    """Say whether the default suite compares an offer in this dtype: in one of its own."""
    dtypes = dtypes_of(offer)
    own = dtypes[crc32(offer.name.encode()) % len(dtypes)]
    return dtype == own and offer.name not in WHOLLY_SLOW


COMBINATIONS = [
    pytest.param(
        slot,
        offer,
        dtype,
        id=f"{offer.name}-{dtype}",
        marks=() if _is_quick(offer, dtype) else pytest.mark.slow,
    )
    for slot in SLOTS
    for offer in portable_offers(slot)
    for dtype in dtypes_of(offer)
]


@pytest.mark.parametrize(("slot", "offer", "dtype"), COMBINATIONS)
def test_it_computes_what_its_operator_says(
    slot: str, offer: Offer | KernelOffer, dtype: str
) -> None:
    num_cases = 0
    for operator in computed_by(slot, offer):
        if operator.name == "sampling.distribution" and not torch.cuda.is_available():
            continue  # 4,000 draws of each row: hours when interpreted; see test_sampling.py
        for outcome in outcomes(operator, offer, Domain(dtype, offer.requires, SEED)):
            num_cases += 1
            assert outcome.agrees, (
                f"{operator.name}, case {outcome.case!r}: {outcome.where}; "
                f"{outcome.error:.3g} times what is allowed"
            )
    assert num_cases, "no case of its operators lies in the domain that it declares"
