"""Every launch of the portable families compiles for real GPUs, whether one is there or not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.portable import dtypes_of, portable_offers
from tests.support.triton_targets import TARGETS, compile_for, launches_of

if TYPE_CHECKING:
    from tokenspeed_sdk import KernelOffer, Offer

SLOTS = ("operator", "attention", "moe", "sampler")
OFFERS = [
    pytest.param(slot, offer, target, id=f"{offer.name}-{target}")
    for slot in SLOTS
    for offer in portable_offers(slot)
    for target in TARGETS
]
REGISTERS = {"sm_90": 255, "gfx942": 512}
"""Of a thread, at most."""


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("slot", "offer", "target"), OFFERS)
def test_all_that_it_launches_compiles_without_spilling(
    slot: str, offer: Offer | KernelOffer, target: str
) -> None:
    dtype = "bfloat16" if "bfloat16" in dtypes_of(offer) else dtypes_of(offer)[0]
    launches = launches_of(slot, offer.name, dtype, target=target)
    assert launches, "no case launches a kernel"
    for launch in launches:
        print(f"{launch.kernel}: {launch.registers} registers, {launch.shared_bytes} bytes shared")
    spilled = [launch for launch in launches if launch.spilled]
    assert [(launch.kernel, launch.spilled, launch.constants) for launch in spilled] == []
    assert all(0 < launch.registers <= REGISTERS[target] for launch in launches)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_a_kernel_that_does_not_compile_is_told_with_the_compilers_words(target: str) -> None:
    good = {"x_ptr": "*fp32", "y_ptr": "*fp32"}
    launch = compile_for("tests.support.triton_samples:copy", good, {"BLOCK": 64}, target)
    assert launch.signature == {**good, "BLOCK": "constexpr"}
    assert launch.spilled == 0
    with pytest.raises(AssertionError, match="power of 2"):
        compile_for("tests.support.triton_samples:copy", good, {"BLOCK": 65}, target)
