"""Kernels in Triton, which compiles them for the GPUs of several vendors.

What a GPU plugin offers beside its own: `context.offer(...)` each of `offers(slot, device=kind)`. A
family is a package whose `offers.py` lists what it has as data; triton is imported when an offer is
loaded. Without a GPU they run in triton's interpreter (TRITON_INTERPRET=1), slowly.

    family        what it computes
    elementwise   norms, rotary embedding, activations, embedding rows
    cache         moves of keys and values, preparation of a step on the device
    attention     paged attention of keys and values (GQA)
    latent        paged attention of latents (MLA)
    recurrent     causal convolution, gated delta rule, KDA
    experts       routing and routed experts
    linear        products with encoded weights
    sampling      the seeded sampler, masks over logits
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenspeed_sdk import KernelOffer, Offer

__all__ = ["FAMILIES", "offers"]

FAMILIES: tuple[str, ...] = (
    "elementwise",
    "cache",
    "attention",
    "latent",
    "recurrent",
    "experts",
    "linear",
    "sampling",
)


def offers(slot: str, *, device: str) -> tuple[Offer | KernelOffer, ...]:
    """Return what the families offer for a slot.

    Args:
        slot: "operator", "attention", "moe" or "sampler".
        device: kind that each offer requires.
    """
    found: list[Offer | KernelOffer] = []
    for family in FAMILIES:
        module = import_module(f"{__name__}.{family}.offers")
        found += module.offers(slot, device)
    return tuple(found)
