"""Operators: the meaning of everything a model computes, one file a family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.ops import (
    activation,
    conv,
    embedding,
    kv,
    linear,
    linear_attention,
    moe,
    norm,
    packing,
    rotary,
    sampling,
    state,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.kernel import Operator

__all__ = [
    "OPERATORS",
    "activation",
    "conv",
    "embedding",
    "kv",
    "linear",
    "linear_attention",
    "moe",
    "norm",
    "packing",
    "rotary",
    "sampling",
    "state",
]

OPERATORS: Mapping[str, Operator] = {
    declared.name: declared
    for declared in (
        norm.rms_norm,
        norm.add_rms_norm,
        norm.centred_rms_norm,
        norm.add_centred_rms_norm,
        norm.gated_rms_norm,
        activation.silu_mul,
        activation.sigmoid_mul,
        rotary.apply_rotary,
        rotary.rotary_angles,
        linear.linear,
        linear.packed_linear,
        embedding.embedding,
        embedding.packed_embedding,
        moe.route,
        moe.experts,
        moe.add_shared,
        conv.causal_conv,
        linear_attention.delta_gates,
        linear_attention.gated_delta_rule,
        kv.write_kv,
        kv.paged_attention,
        sampling.next_token_distribution,
    )
}
"""Name -> operator, for selection, conformance and listings."""
