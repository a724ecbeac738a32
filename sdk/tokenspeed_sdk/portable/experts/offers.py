"""What this family offers, as data: modules are imported when an offer is loaded."""

from __future__ import annotations

from typing import Any

from tokenspeed_sdk import Band, KernelOffer, Offer, lazy
from tokenspeed_sdk.portable.requires import FLOATS, any_shape

_BACKEND = lazy(f"{__package__}.backend:GroupedExperts")
_KERNELS = (("route", "route"), ("slots", "dispatch"), ("count", "dispatch"))
"""Operator of `moe`, and the module that has its kernel."""


def offers(slot: str, device: str) -> tuple[Offer | KernelOffer, ...]:
    """Return what this family offers for a slot on a kind of device."""
    if slot == "operator":
        return tuple(_kernel(*names, device) for names in _KERNELS)
    if slot == "moe":
        return (
            _experts("grouped", device, is_invariant=False),
            _experts("grouped_invariant", device, is_invariant=True),
        )
    return ()


def _kernel(operator: str, module: str, device: str) -> KernelOffer:
    return KernelOffer(
        f"moe.{operator}",
        f"moe_{operator}_triton",
        lazy(f"{__package__}.{module}:{operator}"),
        Band.PORTABLE,
        any_shape(device),
        graph_safe=True,
    )


def _experts(name: str, device: str, *, is_invariant: bool) -> Offer:
    requires: dict[str, tuple[object, ...]] = {
        "device": (device,),
        "arch": ("*",),
        "dtype": FLOATS,
        "num_experts": ("*",),
        "top_k": ("*",),
        "hidden_size": ("*",),
        "expert_features": ("*",),
        "expert_gate": ("silu", "clamped_swiglu"),
        "expert_bias": (True, False),
        "routing": ("softmax", "sigmoid", "softmax_grouped", "sigmoid_grouped"),
        "deterministic": (is_invariant,),
        "graph_safe": (True, False),
    }

    def load(**given: Any) -> Any:
        return _BACKEND()(**given, is_invariant=is_invariant)

    return Offer("moe", name, load, band="PORTABLE", requires=requires)
