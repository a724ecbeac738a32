"""C1: what is offered can be built, fits its interface and refuses what it cannot do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tokenspeed.contracts.binding import RegisteredOffer
from tokenspeed.kernels.judging import declared_traits
from tokenspeed.kernels.selection import select
from tokenspeed.ops.compare import steps_outside
from tokenspeed.plugins.compatibility import check_compatible
from tokenspeed_sdk import CapabilityError, Operator, PluginError
from tokenspeed_sdk.conformance import interfaces
from tokenspeed_sdk.conformance.construct import construct, device_of
from tokenspeed_sdk.conformance.domain import allowed_value
from tokenspeed_sdk.conformance.subject import Subject, SubjectOffer

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed_sdk import DeviceRuntime


@pytest.fixture
def runtime(subject: Subject) -> DeviceRuntime:
    try:
        return device_of(subject)
    except PluginError as error:
        pytest.skip(error.message)


def test_it_registers(subject: Subject) -> None:
    try:
        offers = subject.register("engine" if "engine" in subject.manifest.roles else "cli")
    except PluginError as error:
        if error.id == "device-not-found":
            pytest.skip(error.message)
        raise
    missing = set(subject.manifest.slots) - {offer.slot for offer in offers}
    assert not missing, f"the manifest fills {sorted(missing)} and no hook offers for it"


def test_its_slot_versions_are_served(subject: Subject) -> None:
    check_compatible(subject.manifest)


def test_stated_offers_are_what_the_hooks_offer(subject: Subject) -> None:
    if not subject.manifest.offers:
        pytest.skip("the manifest states no offers")
    offered = {(item.slot, item.offer.name): item.offer for item in subject.offers()}
    if not offered:
        pytest.skip("its device is not here")
    for stated in subject.manifest.offers:
        offer = offered.get((stated.slot, stated.name))
        assert offer is not None, f"{stated.slot}/{stated.name} is stated and not offered"
        requires = dict(getattr(offer, "requires", {}))
        assert requires == dict(stated.requires), f"{stated.name}: the manifest states other traits"


def test_the_offer_can_be_built(
    offer: SubjectOffer, runtime: DeviceRuntime, tmp_path: Path
) -> None:
    if isinstance(offer.offer, Operator):
        assert offer.offer.tolerance, "an operator without tolerances cannot be checked"
        return
    built = construct(offer, runtime, tmp_path)
    assert built is not None, "load returned None"
    if offer.slot == "operator":
        assert callable(built), f"load returned {built!r}, a kernel is a callable"


@pytest.mark.slot(*interfaces.INTERFACES)
def test_what_is_built_fits_its_interface(
    offer: SubjectOffer, runtime: DeviceRuntime, tmp_path: Path
) -> None:
    found = interfaces.problems(offer.slot, construct(offer, runtime, tmp_path))
    assert not found, "; ".join(found)


def test_a_request_outside_its_traits_is_refused(subject: Subject, offer: SubjectOffer) -> None:
    if isinstance(offer.offer, Operator) or not offer.offer.requires:
        pytest.skip("it declares no traits")
    candidate: Any = RegisteredOffer(subject.found.id, subject.found.version, offer.offer)
    declared = declared_traits(offer.offer)
    request = {name: allowed_value(declared, name) for name in declared}
    select(offer.slot, [candidate], request)
    for trait, outside in steps_outside(declared, request):
        with pytest.raises(CapabilityError, match=f"trait.{trait}"):
            select(offer.slot, [candidate], outside)
