"""Operators: the meaning of everything a model computes, one file a family."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.ops import activation, embedding, kv, linear, norm, packing, rotary, sampling

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.kernel import Operator

__all__ = [
    "OPERATORS",
    "activation",
    "embedding",
    "kv",
    "linear",
    "norm",
    "packing",
    "rotary",
    "sampling",
]

OPERATORS: Mapping[str, Operator] = {
    declared.name: declared
    for declared in (
        norm.rms_norm,
        norm.add_rms_norm,
        activation.silu_mul,
        rotary.apply_rotary,
        rotary.rotary_angles,
        linear.linear,
        linear.packed_linear,
        embedding.embedding,
        embedding.packed_embedding,
        kv.write_kv,
        kv.paged_attention,
        sampling.next_token_distribution,
    )
}
"""Name -> operator, for selection, conformance and listings."""
