"""Placements: how a tensor lies over the ranks of a parallel group.

Layers carry them as annotations; at one rank they mean nothing and cost nothing. The compiler that
turns them into collectives reads these and nothing else of a model.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ParallelGroup(Enum):
    """Named groups of ranks over which a module is spread."""

    ATTN_TP = "attn_tp"
    DENSE_TP = "dense_tp"
    MOE_TP_EP = "moe_tp_ep"
    VOCAB_TP = "vocab_tp"


@dataclass(frozen=True, slots=True)
class Replicate:
    """Every rank holds the whole tensor."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Each rank of `group` holds an equal slice along dimension `dim`."""

    group: ParallelGroup
    dim: int


@dataclass(frozen=True, slots=True)
class Partial:
    """Each rank of `group` holds a summand; the tensor is their sum."""

    group: ParallelGroup


Placement = Replicate | Shard | Partial
