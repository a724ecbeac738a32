"""Every operator, by the family it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tokenspeed.ops import (
    activation,
    attention,
    collectives,
    conv,
    embedding,
    kda,
    kv,
    linear,
    linear_attention,
    moe,
    norm,
    quantise,
    rotary,
    sampling,
    step,
)

if TYPE_CHECKING:
    from tokenspeed.contracts.kernel import Operator


class Family(NamedTuple):
    """Operators that are documented together."""

    title: str
    operators: tuple[Operator, ...]


FAMILIES = (
    Family(
        "Norms",
        (
            norm.rms_norm,
            norm.add_rms_norm,
            norm.centred_rms_norm,
            norm.add_centred_rms_norm,
            norm.gated_rms_norm,
            norm.sigmoid_gated_rms_norm,
        ),
    ),
    Family(
        "Activations",
        (
            activation.silu_mul,
            activation.gelu_mul,
            activation.sigmoid_mul,
            activation.scale,
            activation.softcap,
        ),
    ),
    Family("Positions", (rotary.apply_rotary, rotary.rotary_angles)),
    Family("Products", (linear.linear, linear.heads_linear, linear.packed_linear)),
    Family("Embeddings", (embedding.embedding, embedding.packed_embedding)),
    Family("Weight formats", (quantise.decode, quantise.encode)),
    Family("Mixture of experts", (moe.route, moe.slots, moe.count, moe.experts, moe.add_shared)),
    Family(
        "Attention",
        (attention.paged_attention, attention.varlen_attention, attention.merge_attention),
    ),
    Family("Paged cache", (kv.write_kv, kv.gather_kv, kv.copy_tokens)),
    Family("Inputs of a step", (step.prepare, step.patch_tables)),
    Family(
        "Linear attention",
        (
            conv.causal_conv,
            linear_attention.delta_gates,
            linear_attention.gated_delta_rule,
            kda.kda_gates,
            kda.kda_delta_rule,
        ),
    ),
    Family(
        "Sampling",
        (sampling.mask_logits, sampling.next_token_distribution, sampling.token_logprobs),
    ),
    Family(
        "Collectives",
        (
            collectives.all_reduce,
            collectives.all_gather,
            collectives.reduce_scatter,
            collectives.all_to_all,
            collectives.broadcast,
        ),
    ),
)
"""In the order of the documentation."""
