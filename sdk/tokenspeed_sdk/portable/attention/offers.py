"""What the family offers, as data: triton is imported when the backend is built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed_sdk import CacheDemand, Offer

if TYPE_CHECKING:
    from tokenspeed_sdk import KernelOffer

_REQUIRES: dict[str, tuple[object, ...]] = {
    "arch": ("*",),
    "cache": ("gqa",),
    "dtype": ("float32", "bfloat16", "float16"),
    "head_dim": ("*",),
    "v_head_dim": ("*",),
    "gqa_ratio": ("*",),
    "block_tokens": ("*",),
    "window": ("*",),
    "sinks": (True,),
    "softcap": ("*",),
    "graph_safe": (True,),
    "deterministic": (True,),
}


def offers(slot: str, device: str) -> tuple[Offer | KernelOffer, ...]:
    """Return the paged backend, for the attention slot.

    Whole blocks are read through their strides, so that any order of the arena will do.
    """
    if slot != "attention":
        return ()
    return (
        Offer(
            "attention",
            "paged_triton",
            _paged,
            band="PORTABLE",
            requires={"device": (device,), **_REQUIRES},
            facts={"cache": CacheDemand()},
        ),
    )


def _paged(**traits: Any) -> Any:
    from tokenspeed_sdk.portable.attention.backend import PortablePagedAttention

    return PortablePagedAttention(**traits)
