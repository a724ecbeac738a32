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
}
DETERMINISTIC: dict[str, tuple[object, ...]] = {**ANY_FLOAT, "deterministic": (True,)}
_ATTENTION: dict[str, tuple[object, ...]] = {
    **DETERMINISTIC,
    "gqa_ratio": ("*",),
    "window": ("*",),
    "sinks": (True,),
    "softcap": ("*",),
}
_EXPERTS: dict[str, tuple[object, ...]] = {
    "device": ("*",),
    "arch": ("*",),
    "dtype": FLOATS,
    "num_experts": ("*",),
    "top_k": ("*",),
    "hidden_size": ("*",),
    "expert_features": ("*",),
    "expert_gate": ("silu", "clamped_swiglu"),
    "expert_bias": (True, False),
    "routing": ("*",),
}
PACKINGS = ("q4_0", "q4_1", "q8_0", "q4_k", "q6_k")
ENCODED_PACKINGS = ("q4_0", "q4_1", "q8_0")
_BATCHED_PRODUCTS = (
    "linear_plain_any",
    "linear_cpu",
    "heads_linear_plain_any",
    "packed_linear_expand_any",
)
"""Kernels whose rounding depends on the number of rows."""
_HOST_PLANNED = (
    "attention_varlen_plain_any",
    "kv_gather_plain_any",
    "kv_copy_tokens_plain_any",
    "quantise_decode_plain_any",
    "quantise_encode_plain_any",
)
"""Plain kernels whose calls depend on numbers that the host has; all others may be captured, in
steps of one token a row."""
_KERNELS = (
    ("norm.rms", "rms_norm_plain_any", "kernels.norm:rms_norm"),
    ("norm.add_rms", "add_rms_norm_plain_any", "kernels.norm:add_rms_norm"),
    ("norm.centred_rms", "centred_rms_norm_plain_any", "kernels.norm:centred_rms_norm"),
    ("norm.add_centred_rms", "add_centred_rms_norm_plain_any", "kernels.norm:add_centred_rms_norm"),
    ("norm.gated_rms", "gated_rms_norm_plain_any", "kernels.norm:gated_rms_norm"),
    (
        "norm.sigmoid_gated_rms",
        "sigmoid_gated_rms_norm_plain_any",
        "kernels.norm:sigmoid_gated_rms_norm",
    ),
    ("activation.silu_mul", "silu_mul_plain_any", "kernels.activation:silu_mul"),
    ("activation.gelu_mul", "gelu_mul_plain_any", "kernels.activation:gelu_mul"),
    ("activation.sigmoid_mul", "sigmoid_mul_plain_any", "kernels.activation:sigmoid_mul"),
    ("activation.scale", "scale_plain_any", "kernels.activation:scale"),
    ("activation.softcap", "softcap_plain_any", "kernels.activation:softcap"),
    ("rotary.angles", "rotary_angles_plain_any", "kernels.rotary:rotary_angles"),
    ("rotary.apply", "rotary_plain_any", "kernels.rotary:apply_rotary"),
    ("linear.dense", "linear_plain_any", "kernels.linear:linear"),
    ("linear.dense", "linear_rowwise_any", "kernels.linear:linear_rowwise"),
    ("linear.heads", "heads_linear_plain_any", "kernels.linear:heads_linear"),
    ("linear.heads", "heads_linear_rowwise_any", "kernels.linear:heads_linear_rowwise"),
    ("linear.packed", "packed_linear_expand_any", "kernels.packed:packed_linear_expand"),
    ("embedding.lookup", "embedding_plain_any", "kernels.linear:embedding"),
    ("embedding.packed", "packed_embedding_plain_any", "kernels.packed:packed_embedding"),
    ("moe.route", "moe_route_plain_any", "kernels.moe:route"),
    ("moe.slots", "moe_slots_plain_any", "kernels.moe:slots"),
    ("moe.count", "moe_count_plain_any", "kernels.moe:count"),
    ("moe.add_shared", "moe_add_shared_plain_any", "kernels.moe:add_shared"),
    ("conv.causal_silu", "causal_conv_plain_any", "kernels.conv:causal_conv"),
    (
        "linear_attention.delta_gates",
        "delta_gates_plain_any",
        "kernels.linear_attention:delta_gates",
    ),
    (
        "linear_attention.gated_delta",
        "gated_delta_chunked_any",
        "kernels.linear_attention:gated_delta_rule",
    ),
    ("kda.gates", "kda_gates_plain_any", "kernels.kda:kda_gates"),
    ("kda.delta_rule", "kda_delta_chunked_any", "kernels.kda:kda_delta_rule"),
    ("attention.varlen", "attention_varlen_plain_any", "kernels.attention:varlen_attention"),
    ("attention.merge", "attention_merge_plain_any", "kernels.attention:merge_attention"),
    ("kv.gather", "kv_gather_plain_any", "kernels.kv:gather_kv"),
    ("kv.copy_tokens", "kv_copy_tokens_plain_any", "kernels.kv:copy_tokens"),
    ("quantise.decode", "quantise_decode_plain_any", "kernels.weights:decode"),
    ("quantise.encode", "quantise_encode_plain_any", "kernels.weights:encode"),
    ("step.prepare", "step_prepare_plain_any", "kernels.step:prepare"),
    ("step.patch_tables", "step_patch_tables_plain_any", "kernels.step:patch_tables"),
    ("logits.mask", "logits_mask_plain_any", "kernels.logits:mask_logits"),
)
_NATIVE_KERNELS = (
    ("norm.rms", "rms_norm_cpu", "kernels.native:rms_norm"),
    ("norm.add_rms", "add_rms_norm_cpu", "kernels.native:add_rms_norm"),
    ("activation.silu_mul", "silu_mul_cpu", "kernels.native:silu_mul"),
    ("rotary.apply", "rotary_cpu", "kernels.native:apply_rotary"),
    ("linear.dense", "linear_cpu", "kernels.native:linear"),
    ("linear.dense", "linear_invariant_cpu", "kernels.native:linear_invariant"),
    ("linear.packed", "packed_linear_cpu", "kernels.packed_native:packed_linear"),
)
CPU_FLOAT32: dict[str, tuple[object, ...]] = {
    **ANY_FLOAT,
    "device": ("cpu",),
    "dtype": ("float32",),
}
_ANY_PACKING = {**ANY_FLOAT, "packing": PACKINGS}
_REQUIRES: dict[str, dict[str, tuple[object, ...]]] = {
    "packed_linear_cpu": {**_ANY_PACKING, "device": ("cpu",)},
    "packed_linear_expand_any": _ANY_PACKING,
    "packed_embedding_plain_any": _ANY_PACKING,
    "quantise_decode_plain_any": _ANY_PACKING,
    "quantise_encode_plain_any": {**ANY_FLOAT, "packing": ENCODED_PACKINGS},
}


def device_offers() -> tuple[Offer, ...]:
    """Offer the host's processors as device `cpu`."""
    return (Offer("device", "cpu", lambda: _load("device:CpuRuntime")(), facts={"kind": "cpu"}),)


def kernel_offers() -> tuple[KernelOffer, ...]:
    """Offer a plain kernel for every operator, and native ones for the CPU."""
    plain = (_kernel(*entry, Band.REFERENCE, ANY_FLOAT) for entry in _KERNELS)
    native = (_kernel(*entry, Band.PORTABLE, CPU_FLOAT32) for entry in _NATIVE_KERNELS)
    return (*plain, *native)


def _kernel(
    operator: str, name: str, target: str, band: Band, requires: dict[str, tuple[object, ...]]
) -> KernelOffer:
    return KernelOffer(
        operator,
        name,
        _loader(target),
        band=band,
        requires=_REQUIRES.get(name, requires),
        graph_safe=name.endswith("_any") and name not in _HOST_PLANNED,
        deterministic=name not in _BATCHED_PRODUCTS,
    )


def attention_offers() -> tuple[Offer, ...]:
    """Offer paged attention, plain and native, of any head dimension, block size and window.

    The plain one also attends to latents, and to values of another width than keys.
    """
    plain = {**_ATTENTION, "cache": ("gqa", "mla"), "v_head_dim": ("*",)}
    native = {**_ATTENTION, "device": ("cpu",), "dtype": ("float32",)}
    return (
        Offer("attention", "paged", _attention, requires=plain),
        Offer("attention", "paged_cpu", _native_attention, band="PORTABLE", requires=native),
    )


def moe_offers() -> tuple[Offer, ...]:
    """Offer experts one by one, fast, or bitwise the same in every batch."""
    batched, rowwise = ({**_EXPERTS, "deterministic": (value,)} for value in (False, True))
    return (
        Offer("moe", "plain", _experts, requires=batched),
        Offer("moe", "rowwise", lambda **given: _experts(**given, rowwise=True), requires=rowwise),
    )


def sampler_offers() -> tuple[Offer, ...]:
    """Offer the seeded sampler; on a device with graphs it never looks at a result."""
    requires = {**DETERMINISTIC, "graph_safe": (True, False)}
    return (Offer("sampler", "philox", _sampler, requires=requires),)


def communicator_offers() -> tuple[Offer, ...]:
    """Offer collectives between threads of one process, and between processes on CPUs."""
    threads = {**DETERMINISTIC, "ranks": ("threads",)}
    gloo = {**DETERMINISTIC, "device": ("cpu",), "ranks": ("processes",), "hosts": ("*",)}
    return (
        Offer("communicator", "threads", _communicator, requires=threads),
        Offer("communicator", "gloo", _gloo, requires=gloo),
    )


def kv_store_offers() -> tuple[Offer, ...]:
    """Offer stores in memory and on local disk."""
    return (
        Offer(
            "kv_store", "memory", lambda **options: _load("stores.memory:MemoryStore")(**options)
        ),
        Offer("kv_store", "disk", lambda **options: _load("stores.disk:DiskStore")(**options)),
    )


def speculator_offers() -> tuple[Offer, ...]:
    """Offer drafts copied from the request's own prompt and output."""
    return (
        Offer("speculator", "ngram", lambda **options: _load("ngram:NgramSpeculator")(**options)),
    )


def _attention(**traits: Any) -> Any:
    return _load("attention:PagedAttention")(**traits)


def _native_attention(**traits: Any) -> Any:
    return _load("attention_native:NativePagedAttention")(**traits)


def _experts(**options: Any) -> Any:
    return _load("moe:PlainExperts")(**options)


def _sampler(**options: Any) -> Any:
    return _load("sampler:PhiloxSampler")(**options)


def _communicator(**options: Any) -> Any:
    return _load("communicator:ThreadCommunicator")(**options)


def _gloo(**options: Any) -> Any:
    return _load("gloo:GlooCommunicator")(**options)


def _loader(target: str) -> Callable[[], Callable[..., Any]]:
    return lambda: _load(target)


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(f"tokenspeed_reference.{module}"), name)
