"""The declared domain of an offer: a request that lies in it, to build the offer with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed_sdk import TRAITS

if TYPE_CHECKING:
    from collections.abc import Mapping

ANY = "*"
USUAL: Mapping[str, object] = {
    "dtype": "float32",
    "head_dim": 16,
    "block_tokens": 16,
    "num_experts": 4,
    "top_k": 2,
    "hidden_size": 32,
    "expert_features": 16,
}
"""What stands for "any value" of a trait without a neutral one."""


def allowed_value(requires: Mapping[str, tuple[object, ...]], trait: str) -> object:
    """Return a value of a trait that an offer allows: the neutral one if there is one."""
    neutral = TRAITS[trait].neutral
    if neutral is not None:
        return neutral
    declared = requires.get(trait, ())
    return USUAL.get(trait) if ANY in declared else next(iter(declared), None)
