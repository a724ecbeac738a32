"""Offers that a manifest states: they can be explained without loading, and must be the hooks'."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from tokenspeed.contracts.kernel import Band, KernelOffer, Operator
from tokenspeed.contracts.registration import Offer
from tokenspeed.errors import PluginError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenspeed.plugins.manifest import Manifest, StatedOffer

    Anything = Offer | KernelOffer | Operator


def with_device(offer: Offer | KernelOffer, manifest: Manifest) -> Offer | KernelOffer:
    """Return the offer as it counts: silent about `device`, it is for the plugin's device kinds.

    One that declares no traits at all, such as a model, computes nothing and stays as it is.
    """
    computes = isinstance(offer, KernelOffer) or bool(offer.requires)
    if "device" in offer.requires or not computes:
        return offer
    return replace(offer, requires={"device": manifest.device_kinds, **offer.requires})


def stated_offers(manifest: Manifest) -> list[tuple[str, Anything]]:
    """Return the manifest's offers as (slot, offer); they can be chosen, and not loaded."""
    return [(stated.slot, _offer(stated, manifest)) for stated in manifest.offers]


def check_stated(manifest: Manifest, staged: Iterable[tuple[str, Anything]]) -> None:
    """Compare what the manifest states with what the hooks registered.

    Raises:
        PluginError: a stated offer is missing, or has another band or other traits.
    """
    registered = {(slot, offer.name): offer for slot, offer in staged}
    for stated in manifest.offers:
        offer = registered.get((stated.slot, stated.name))
        if offer is None:
            raise PluginError(
                f"the manifest states offer {stated.slot}/{stated.name}, which no hook made; "
                "correct one of the two",
                id="offer-missing",
            )
        said, made = _claims(_offer(stated, manifest)), _claims(offer)
        wrong = sorted(name for name in said | made if said.get(name) != made.get(name))
        if wrong:
            name = wrong[0]
            raise PluginError(
                f"the manifest states offer {stated.slot}/{stated.name} with {name} "
                f"{said.get(name)!r}, its hook registers {made.get(name)!r}; make them equal",
                id="offer-differs",
            )


def _offer(stated: StatedOffer, manifest: Manifest) -> Offer | KernelOffer:
    if not stated.operator:
        offer = Offer(stated.slot, stated.name, _not_loadable, stated.band, stated.requires)
        return with_device(offer, manifest)
    kernel = KernelOffer(
        stated.operator,
        stated.name,
        _not_loadable,
        band=Band[stated.band],
        requires=stated.requires,
        deterministic=True in stated.requires.get("deterministic", ()),
        graph_safe=True in stated.requires.get("graph_safe", ()),
    )
    return with_device(kernel, manifest)


def _claims(offer: Anything) -> dict[str, Any]:
    """Return what an offer says of itself; a kernel's properties are traits, as in a request."""
    if isinstance(offer, Operator):
        return {"operator": offer.name}
    claims: dict[str, Any] = {name: set(values) for name, values in offer.requires.items()}
    if not isinstance(offer, KernelOffer):
        return {**claims, "band": offer.band}
    for name in ("deterministic", "graph_safe"):
        if getattr(offer, name):
            claims.setdefault(name, {True})
    return {**claims, "band": offer.band.name, "operator": offer.operator}


def _not_loadable(**_: Any) -> NoReturn:
    raise PluginError(
        "this offer is known from a manifest only; load its plugin on a machine with its device",
        id="offer-load-failed",
    )
