"""What is offered of recurrent layers, as data."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from tokenspeed_sdk import Band, KernelOffer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed_sdk import Offer

__all__ = ["offers"]

_KERNELS = (
    ("conv.causal_silu", "causal_conv_triton", "conv:causal_conv"),
    ("linear_attention.delta_gates", "delta_gates_triton", "gates:delta_gates"),
    ("linear_attention.gated_delta", "gated_delta_triton", "delta:gated_delta_rule"),
    ("kda.gates", "kda_gates_triton", "gates:kda_gates"),
    ("kda.delta_rule", "kda_delta_triton", "delta:kda_delta_rule"),
)


def offers(slot: str, device: str) -> tuple[Offer | KernelOffer, ...]:
    """Return the kernels; those over state rows are graph-safe where a row has one token."""
    if slot != "operator":
        return ()
    requires: dict[str, tuple[object, ...]] = {
        "device": (device,),
        "arch": ("*",),
        "dtype": ("float32", "bfloat16", "float16"),
    }
    return tuple(
        KernelOffer(
            operator,
            name,
            _loader(target),
            band=Band.PORTABLE,
            requires=requires,
            graph_safe=True,
        )
        for operator, name, target in _KERNELS
    )


def _loader(target: str) -> Callable[[], Callable[..., Any]]:
    module, _, name = target.partition(":")
    return lambda: getattr(import_module(f"tokenspeed_sdk.portable.recurrent.{module}"), name)
