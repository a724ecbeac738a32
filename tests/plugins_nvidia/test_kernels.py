"""On a GPU: what the portable families and libraries offer computes what its operators say.

Alone: `make gpu-check ARGS="--only kernels"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.portable import DEVICE, SLOTS, computed_by, dtypes_of, portable_offers

from tokenspeed.ops.backends import outcomes
from tokenspeed_nvidia.flashinfer.offers import attention_offers
from tokenspeed_sdk import Domain, KernelOffer

if TYPE_CHECKING:
    from tokenspeed_sdk import Offer

pytestmark = pytest.mark.needs_nvidia

SEED = 7
OFFERS = [
    *((slot, offer) for slot in SLOTS for offer in portable_offers(slot)),
    *(("attention", offer) for offer in attention_offers(DEVICE)),
]
COMBINATIONS = [
    pytest.param(slot, offer, dtype, id=f"{offer.name}-{dtype}")
    for slot, offer in OFFERS
    for dtype in dtypes_of(offer)
]


@pytest.mark.parametrize(("slot", "offer", "dtype"), COMBINATIONS)
def test_it_computes_what_its_operator_says(
    slot: str, offer: Offer | KernelOffer, dtype: str
) -> None:
    num_cases = 0
    for operator in computed_by(slot, offer):
        domain = Domain(dtype, offer.requires, SEED)
        for outcome in outcomes(operator, offer, domain, device="cuda"):
            num_cases += 1
            assert outcome.agrees, (
                f"{operator.name}, case {outcome.case!r}: {outcome.where}; "
                f"{outcome.error:.3g} times what is allowed"
            )
    assert num_cases, "no case of its operators lies in the domain that it declares"
