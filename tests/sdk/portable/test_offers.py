"""What the portable families offer computes what its operators say, over the cases they declare."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.portable import computed_by, dtypes_of, portable_offers

from tokenspeed.ops.backends import outcomes
from tokenspeed_sdk import Domain

if TYPE_CHECKING:
    from tokenspeed_sdk import KernelOffer, Offer

SEED = 7
SLOTS = ("operator", "attention", "moe", "sampler")
SLOW = ("paged_triton",)
"""Offers whose many cases the interpreter takes long for; tests of their own go the same ways."""
COMBINATIONS = [
    pytest.param(
        slot,
        offer,
        dtype,
        id=f"{offer.name}-{dtype}",
        marks=[pytest.mark.slow] if offer.name in SLOW else [],
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
        for outcome in outcomes(operator, offer, Domain(dtype, offer.requires, SEED)):
            num_cases += 1
            assert outcome.agrees, (
                f"{operator.name}, case {outcome.case!r}: {outcome.where}; "
                f"{outcome.error:.3g} times what is allowed"
            )
    assert num_cases, "no case of its operators lies in the domain that it declares"
