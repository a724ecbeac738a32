"""What this family offers, as data: every load function imports its module only when called."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokenspeed_sdk import Band, KernelOffer, Offer

if TYPE_CHECKING:
    from collections.abc import Callable

_PACKAGE = __name__.rpartition(".")[0]
_KERNELS = (
    ("moe.route", "moe_route_triton", "route:route"),
    ("moe.add_shared", "moe_add_shared_triton", "shared:add_shared"),
)


def offers(slot: str, device: str) -> tuple[Offer | KernelOffer, ...]:
    """Return what is offered for a slot on devices of a kind."""
    common: dict[str, tuple[object, ...]] = {
        "device": (device,),
        "arch": ("*",),
        "dtype": ("float32", "bfloat16", "float16"),
    }
    if slot == "operator":
        return tuple(
            KernelOffer(
                operator,
                name,
                _loader(target),
                band=Band.PORTABLE,
                requires=common,
                graph_safe=True,
                deterministic=True,
            )
            for operator, name, target in _KERNELS
        )
    if slot == "moe":
        return (_experts("grouped", common, False), _experts("grouped_invariant", common, True))
    return ()


def _experts(name: str, common: dict[str, tuple[object, ...]], is_invariant: bool) -> Offer:
    requires = {
        **common,
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
        return _load("backend:GroupedExperts")(**given, is_invariant=is_invariant)

    return Offer("moe", name, load, band="PORTABLE", requires=requires)


def _loader(target: str) -> Callable[[], Callable[..., Any]]:
    return lambda: _load(target)


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(import_module(f"{_PACKAGE}.{module}"), name)
