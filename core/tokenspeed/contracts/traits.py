"""The words that requests and offers are compared in. `docs/plugins/traits.md` is made from here.

A new word gets the vocabulary version that brought it and a neutral value that says what every
earlier offer did: requests leave neutral values out, so that earlier offers still match.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class Compare(Enum):
    """How the wanted value is held against the declared ones; the value is the rule in words."""

    LISTED = "the offer lists the value"
    ANY_OF = "the offer lists one of the names that the device says it runs"
    AT_MOST = "the value is at most the largest listed"
    AT_LEAST = "the value is at least the smallest listed"


@dataclass(frozen=True, slots=True)
class Trait:
    """One word of the vocabulary.

    Args:
        name: as written in manifests and requests.
        since: vocabulary version that introduced it.
        neutral: value that all earlier offers meant; None: no neutral value, always carried.
        meaning: one sentence.
        unit: of its value; "": a name or a yes.
        compare: how wanted and declared values are compared.
    """

    name: str
    since: str
    neutral: object
    meaning: str
    unit: str = ""
    compare: Compare = Compare.LISTED


VOCABULARY_VERSION = "1.0"

TRAITS: Mapping[str, Trait] = {
    trait.name: trait
    for trait in (
        Trait("device", "1.0", None, "device kind the tensors live on"),
        Trait(
            "arch",
            "1.0",
            "",
            "architecture; the device plugin says for which names built code runs on its device",
            compare=Compare.ANY_OF,
        ),
        Trait("vendor", "1.0", "", "maker of the device or the kernels; asked for, not implied"),
        Trait("dtype", "1.0", None, "activations: float32, bfloat16, float16"),
        Trait("kv_dtype", "1.0", "", "cached keys and values where they differ from dtype"),
        Trait("weight_dtype", "1.0", "", "weights where they differ from dtype"),
        Trait("output_dtype", "1.0", "", "results where they differ from dtype"),
        Trait("packing", "1.0", "", "packed weight layout such as q4_1; empty: plain"),
        Trait(
            "cache",
            "1.0",
            "gqa",
            "what a layer keeps: gqa (keys and values a head), mla, dsa, linear, state",
        ),
        Trait("head_dim", "1.0", None, "size of a query and of a key head", "elements"),
        Trait(
            "v_head_dim", "1.0", 0, "size of a value head where it differs; 0: head_dim", "elements"
        ),
        Trait("gqa_ratio", "1.0", 1, "query heads that share one key head", "heads"),
        Trait("block_tokens", "1.0", None, "size of a logical cache block", "tokens"),
        Trait("sinks", "1.0", False, "a sink logit a head takes part in the softmax"),
        Trait("window", "1.0", 0, "sliding window; 0: full attention", "tokens"),
        Trait("softcap", "1.0", 0.0, "soft cap of the scores; 0: none", "logits"),
        Trait("mask", "1.0", "causal", "who sees whom: causal, bidirectional, tree"),
        Trait(
            "draft_tokens",
            "1.0",
            0,
            "most draft tokens verified behind a row's own",
            "tokens",
            Compare.AT_MOST,
        ),
        Trait("num_experts", "1.0", None, "routed experts of a layer", "experts"),
        Trait("top_k", "1.0", None, "experts chosen a token", "experts"),
        Trait("hidden_size", "1.0", None, "size of a token's hidden state", "elements"),
        Trait("expert_features", "1.0", None, "hidden features of one expert", "elements"),
        Trait("expert_gate", "1.0", "silu", "gate of an expert: silu, clamped_swiglu"),
        Trait("expert_bias", "1.0", False, "experts add biases"),
        Trait(
            "routing",
            "1.0",
            "softmax",
            "score that chooses experts: softmax, sigmoid; with _grouped: among the best groups",
        ),
        Trait("deterministic", "1.0", False, "result independent of batch composition"),
        Trait("graph_safe", "1.0", False, "may be captured into a device graph"),
        Trait(
            "tensor_parallel", "1.0", 1, "ranks a layer is spread over", "ranks", Compare.AT_MOST
        ),
        Trait(
            "expert_parallel",
            "1.0",
            1,
            "ranks the experts are spread over",
            "ranks",
            Compare.AT_MOST,
        ),
        Trait("ranks", "1.0", "threads", "what the ranks of a group are: threads, processes"),
        Trait(
            "hosts", "1.0", 1, "machines that a group's ranks are on", "machines", Compare.AT_MOST
        ),
        Trait(
            "alignment",
            "1.0",
            16,
            "tensors begin at multiples of this, where it is less than 16",
            "bytes",
            Compare.AT_LEAST,
        ),
        Trait(
            "workspace",
            "1.0",
            0,
            "scratch memory that a call may take; the offer lists what it needs; 0: not limited",
            "bytes",
            Compare.AT_LEAST,
        ),
    )
}
