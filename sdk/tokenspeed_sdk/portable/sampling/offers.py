"""What this family offers, as data: modules are imported when an offer is loaded."""

from __future__ import annotations

from typing import Any

from tokenspeed_sdk import Band, KernelOffer, Offer, lazy
from tokenspeed_sdk.portable.requires import any_shape


def offers(slot: str, device: str) -> tuple[Offer | KernelOffer, ...]:
    """Return what this family offers for a slot on a kind of device."""
    requires = any_shape(device)
    if slot == "sampler":
        always = {**requires, "deterministic": (True, False), "graph_safe": (True, False)}
        return (Offer("sampler", "philox_triton", _sampler, Band.PORTABLE.name, always),)
    if slot != "operator":
        return ()
    load = lazy(f"{__package__}.mask:mask_logits")
    return (
        KernelOffer(
            "logits.mask", "mask_logits_triton", load, Band.PORTABLE, requires, graph_safe=True
        ),
    )


def _sampler(**options: Any) -> Any:
    from tokenspeed_sdk.portable.sampling.sampler import TritonSampler

    return TritonSampler(**options)
