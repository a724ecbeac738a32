"""Every launch of the portable families compiles for real GPUs, whether one is there or not."""

from __future__ import annotations

import functools

import pytest
from tests.support import triton_real_shapes
from tests.support.portable import offers_of
from tests.support.triton_targets import REAL_SHAPES, TARGETS, Launch, compile_for, launches_of

from tokenspeed_sdk import portable

OFFERS = [
    pytest.param(family, offer.name, target, id=f"{offer.name}-{target}")
    for family in portable.FAMILIES
    for _, offer in offers_of(family)
    for target in TARGETS
] + [
    pytest.param(family, REAL_SHAPES, target, id=f"{family}-real-shapes-{target}")
    for family in portable.FAMILIES
    if hasattr(triton_real_shapes, family)
    for target in TARGETS
]
REGISTERS = {"sm_90": 255, "gfx942": 512}
"""Of a thread, at most."""
FEW = 32
"""Bytes of a thread's stack that do not matter: something is kept around a loop, not in it."""
KNOWN = {"relate_chunk": 1024}
"""Kernel -> bytes that it is known to spill: it holds the pairs of a chunk and their inverse."""


@functools.cache
def compiled(family: str) -> dict[tuple[str, str], list[Launch] | str]:
    return launches_of(family)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("family", "offer", "target"), OFFERS)
def test_all_that_it_launches_compiles_without_spilling(
    family: str, offer: str, target: str
) -> None:
    launches = compiled(family)[offer, target]
    assert isinstance(launches, list), launches
    assert launches, "no case launches a kernel"
    for launch in launches:
        print(f"{launch.kernel}: {launch.registers} registers, {launch.shared_bytes} bytes shared")
    spilled = [launch for launch in launches if launch.spilled > KNOWN.get(launch.kernel, FEW)]
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
