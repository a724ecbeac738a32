"""Operators: the meaning of everything a model computes, one file a family.

True of every operator unless it says otherwise: there may be no tokens, rows or parts of ranks at
all; the last axis of a tensor is contiguous, the axes before it may be strided; weights are
contiguous; results are new tensors. `backends.outcomes` compares any offer with a definition,
`alone.depends_on_batch` an implementation with itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.ops import (
    activation,
    alone,
    attention,
    backends,
    collectives,
    compare,
    conv,
    embedding,
    kda,
    kv,
    linear,
    linear_attention,
    moe,
    norm,
    packing,
    quantise,
    rotary,
    sampling,
    state,
    step,
)
from tokenspeed.ops.families import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.kernel import Operator

__all__ = [
    "FAMILIES",
    "OPERATORS",
    "activation",
    "alone",
    "attention",
    "backends",
    "collectives",
    "compare",
    "conv",
    "embedding",
    "kda",
    "kv",
    "linear",
    "linear_attention",
    "moe",
    "norm",
    "packing",
    "quantise",
    "rotary",
    "sampling",
    "state",
    "step",
]

OPERATORS: Mapping[str, Operator] = {
    declared.name: declared for family in FAMILIES for declared in family.operators
}
"""Name -> operator, for selection, conformance and listings."""
