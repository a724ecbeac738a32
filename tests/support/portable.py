"""The offers of `tokenspeed_sdk.portable`, as they are compared with the operators they compute."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tokenspeed.ops import OPERATORS
from tokenspeed_sdk import KernelOffer, portable

if TYPE_CHECKING:
    from tokenspeed_sdk import Offer, Operator

DEVICE = "cuda"
SLOTS = ("operator", "attention", "moe", "sampler")


def portable_offers(slot: str) -> list[Offer | KernelOffer]:
    """Return what is offered for a slot, as for a device of kind "cuda"."""
    return list(portable.offers(slot, device=DEVICE))


def offers_of(family: str) -> list[tuple[str, Offer | KernelOffer]]:
    """Return the (slot, offer) of one family."""
    module = import_module(f"{portable.__name__}.{family}.offers")
    return [(slot, offer) for slot in SLOTS for offer in module.offers(slot, DEVICE)]


def dtypes_of(offer: Offer | KernelOffer) -> list[str]:
    """Return the dtypes that an offer declares."""
    return [str(dtype) for dtype in offer.requires.get("dtype", ("float32",))]


def computed_by(slot: str, offer: Offer | KernelOffer) -> list[Operator]:
    """Return the operators that an offer computes."""
    if isinstance(offer, KernelOffer):
        return [OPERATORS[offer.operator]]
    return [operator for operator in OPERATORS.values() if operator.slot == slot]
