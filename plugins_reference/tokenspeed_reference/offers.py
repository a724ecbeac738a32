"""What this wheel offers, as data: every load function imports its module only when called."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tokenspeed_sdk import Band, KernelOffer, Offer

if TYPE_CHECKING:
    from collections.abc import Callable

FLOATS = ("float32", "bfloat16", "float16")
ANY_FLOAT: dict[str, tuple[object, ...]] = {
    "device": ("*",),
    "arch": ("*",),
    "dtype": FLOATS,
    "head_dim": ("*",),
    "block_tokens": ("*",),
    "deterministic": (True,),
}
PACKINGS = ("q4_0", "q4_1", "q8_0", "q4_k", "q6_k")
_PLAIN = (
    ("norm.rms", "rms_norm_plain_any", "kernels.norm:rms_norm"),
    ("norm.add_rms", "add_rms_norm_plain_any", "kernels.norm:add_rms_norm"),
    ("activation.silu_mul", "silu_mul_plain_any", "kernels.activation:silu_mul"),
    ("rotary.apply", "rotary_plain_any", "kernels.rotary:apply_rotary"),
    ("linear.dense", "linear_plain_any", "kernels.linear:linear"),
    ("embedding.lookup", "embedding_plain_any", "kernels.linear:embedding"),
)


def device_offers() -> tuple[Offer, ...]:
    """Offer the host's processors as device `cpu`."""
    return (Offer("device", "cpu", lambda: _load("device:CpuRuntime")(), facts={"kind": "cpu"}),)


def kernel_offers() -> tuple[KernelOffer, ...]:
    """Offer a kernel for every operator."""
    plain = tuple(
        KernelOffer(operator, name, _loader(target), requires=ANY_FLOAT)
        for operator, name, target in _PLAIN
    )
    any_packing = {**ANY_FLOAT, "packing": PACKINGS}
    return (
        *plain,
        KernelOffer(
            "linear.packed",
            "packed_linear_int4_cpu",
            _loader("kernels.packed:packed_linear_int4"),
            band=Band.PORTABLE,
            requires={**any_packing, "device": ("cpu",)},
        ),
        KernelOffer(
            "linear.packed",
            "packed_linear_expand_any",
            _loader("kernels.packed:packed_linear_expand"),
            requires=any_packing,
        ),
        KernelOffer(
            "embedding.packed",
            "packed_embedding_plain_any",
            _loader("kernels.packed:packed_embedding"),
            requires=any_packing,
        ),
    )


def attention_offers() -> tuple[Offer, ...]:
    """Offer the paged backend, which takes any head dimension and block size."""
    return (Offer("attention", "paged", _attention, requires=ANY_FLOAT),)


def sampler_offers() -> tuple[Offer, ...]:
    """Offer the seeded sampler."""
    return (Offer("sampler", "philox", _sampler, requires=ANY_FLOAT),)


def _attention(**traits: Any) -> Any:
    return _load("attention:PagedAttention")(**traits)


def _sampler(**options: Any) -> Any:
    return _load("sampler:PhiloxSampler")(**options)


def _loader(target: str) -> Callable[[], Callable[..., Any]]:
    return lambda: _load(target)


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(f"tokenspeed_reference.{module}"), name)
