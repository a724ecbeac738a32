"""What is offered of attention, as data.

An attention offer that takes latents is asked for keys and values a head too (trait cache "gqa" is
neutral): so these do both, and leave "gqa" to backends that are made for it, which say more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed_sdk import Offer

if TYPE_CHECKING:
    from tokenspeed_sdk import KernelOffer

__all__ = ["offers"]


def offers(slot: str, device: str) -> tuple[Offer | KernelOffer, ...]:
    """Return the backend, fast, or with the same result of a row in every batch."""
    if slot != "attention":
        return ()
    requires: dict[str, tuple[object, ...]] = {
        "device": (device,),
        "arch": ("*",),
        "dtype": ("float32", "bfloat16", "float16"),
        "cache": ("gqa", "mla"),
        "head_dim": ("*",),
        "v_head_dim": ("*",),
        "gqa_ratio": ("*",),
        "block_tokens": ("*",),
        "graph_safe": (True, False),
    }
    return (
        Offer("attention", "paged_latent", _balanced, "PORTABLE", _with(requires, False)),
        Offer("attention", "paged_latent_invariant", _alone, "PORTABLE", _with(requires, True)),
    )


def _with(requires: dict[str, tuple[object, ...]], value: bool) -> dict[str, tuple[object, ...]]:
    return {**requires, "deterministic": (value,)}


def _balanced(**traits: Any) -> Any:
    from tokenspeed_sdk.portable.latent.backend import LatentAttention

    return LatentAttention(**traits)


def _alone(**traits: Any) -> Any:
    from tokenspeed_sdk.portable.latent.backend import LatentAttention

    return LatentAttention(**traits, alone=True)
