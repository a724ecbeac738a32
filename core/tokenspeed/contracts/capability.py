"""Capabilities: a versioned vocabulary of traits, and the fail-closed match of request and offer.

A request carries a trait only when its value is not neutral. An offer that does not declare a
trait which the request carries does not match: adding a trait to a request never adds candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Trait:
    """One word of the vocabulary.

    Args:
        name: as written in manifests and requests.
        since: vocabulary version that introduced it.
        neutral: value that all earlier offers meant; None: no neutral value, always carried.
        meaning: one sentence with units.
    """

    name: str
    since: str
    neutral: object
    meaning: str


VOCABULARY_VERSION = "1.0"

TRAITS: Mapping[str, Trait] = {
    trait.name: trait
    for trait in (
        Trait("device", "1.0", None, "device kind the tensors live on"),
        Trait("arch", "1.0", "", "device architecture feature name"),
        Trait("dtype", "1.0", None, "activation dtype: float32, bfloat16, float16"),
        Trait("kv_dtype", "1.0", "", "cache dtype where it differs from dtype"),
        Trait("packing", "1.0", "", "packed weight layout such as q4_1; empty: plain"),
        Trait("head_dim", "1.0", None, "elements per query and key head"),
        Trait("v_head_dim", "1.0", 0, "elements per value head where it differs; 0: head_dim"),
        Trait("block_tokens", "1.0", None, "tokens per logical cache block"),
        Trait("sinks", "1.0", False, "attention sink logits per head"),
        Trait("window", "1.0", 0, "sliding window in tokens; 0: full attention"),
        Trait("softcap", "1.0", 0.0, "logit soft cap; 0: none"),
        Trait("num_experts", "1.0", None, "routed experts of a layer"),
        Trait("top_k", "1.0", None, "experts chosen a token"),
        Trait("hidden_size", "1.0", None, "elements of a token's hidden state"),
        Trait("expert_features", "1.0", None, "hidden features of one expert"),
        Trait("expert_gate", "1.0", "silu", "gate of an expert: silu or clamped_swiglu"),
        Trait("expert_bias", "1.0", False, "experts add biases"),
        Trait("routing", "1.0", "softmax", "softmax or sigmoid of experts, +_grouped"),
        Trait("deterministic", "1.0", False, "result independent of batch composition"),
        Trait("graph_safe", "1.0", False, "may be captured into a device graph"),
    )
}


@dataclass(frozen=True, slots=True)
class Clause:
    """One unmet demand: why an offer was refused."""

    id: str
    wanted: object
    have: tuple[object, ...] | None

    def __str__(self) -> str:
        if self.have is None:
            return f"{self.id}: wanted {self.wanted!r}, not declared"
        return f"{self.id}: wanted {self.wanted!r}, has {', '.join(map(repr, self.have))}"


def carried(traits: Mapping[str, object]) -> dict[str, object]:
    """Drop neutral values; refuse unknown words.

    Raises:
        KeyError: a trait that the vocabulary does not know.
    """
    return {name: value for name, value in traits.items() if value != TRAITS[name].neutral}


def unmet_clauses(
    request: Mapping[str, object], offered: Mapping[str, tuple[object, ...]]
) -> tuple[Clause, ...]:
    """List the carried traits of `request` that `offered` does not allow.

    An offer allows a trait by listing the value, or "*" for any.
    """
    clauses = []
    for name, wanted in sorted(carried(request).items()):
        have = offered.get(name)
        if have is None or ("*" not in have and wanted not in have):
            clauses.append(Clause(f"trait.{name}", wanted, have))
    return tuple(clauses)
