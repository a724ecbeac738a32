"""On a GPU: what the portable families and libraries offer computes what its operators say.

Alone: `make gpu-check ARGS="--only kernels"`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.portable import DEVICE, computed_by, dtypes_of, offers_of

from tokenspeed.ops.backends import outcomes
from tokenspeed_nvidia.flashinfer.offers import attention_offers
from tokenspeed_sdk import Domain, KernelOffer, portable

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.ops.compare import Outcome
    from tokenspeed_sdk import Offer

pytestmark = pytest.mark.needs_nvidia

SEED = 7
OFFERS = [
    *((family, *found) for family in portable.FAMILIES for found in offers_of(family)),
    *(("flashinfer", "attention", offer) for offer in attention_offers(DEVICE)),
]
COMBINATIONS = [
    pytest.param(family, slot, offer, dtype, id=f"{offer.name}-{dtype}")
    for family, slot, offer in OFFERS
    for dtype in dtypes_of(offer)
]


@pytest.mark.parametrize(("family", "slot", "offer", "dtype"), COMBINATIONS)
def test_it_computes_what_its_operator_says(
    family: str,
    slot: str,
    offer: Offer | KernelOffer,
    dtype: str,
    record_property: Callable[[str, object], None],
) -> None:
    found: list[tuple[str, Outcome]] = []
    record_property("family", family)
    try:
        for operator in computed_by(slot, offer):
            domain = Domain(dtype, offer.requires, SEED)
            for outcome in outcomes(operator, offer, domain, device="cuda"):
                found.append((operator.name, outcome))
    finally:
        record_property("cases", len(found))
        record_property("error", max((outcome.error for _, outcome in found), default=0.0))
    wrong = [
        f"{name}, case {outcome.case!r}: {outcome.where}; {outcome.error:.3g} times what is allowed"
        for name, outcome in found
        if not outcome.agrees
    ]
    assert not wrong, "\n".join(wrong)
    assert found, "no case of its operators lies in the domain that it declares"
