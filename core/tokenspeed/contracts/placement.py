"""Placements: how tensors lie over ranks, in the words that models and operators use.

A layer says which letters of its operator's placement rule are spread over which group; the
compiler (`placement/`) finds the rest. At one rank the words mean nothing and cost nothing.

A placement rule is text: the dimensions of the arguments, an arrow, the dimensions of the results.

    T I, O I, ~O -> T O        y = x W^T + b
    T N, T N -> T N            element by element
    ~T D, ~T D -> T D          x + y
    T 2F -> T F                silu(gate) up, gate before up
    ... D! -> ... D!           a norm of the last dimension
    Q N H!, T K H!, T K V! -> Q N V!; K<N, T<Q      attention

- A letter is a dimension that may be cut into equal parts, one a rank. The same letter is cut alike
  everywhere. A letter of the arguments that no result has is summed over: cut, the results are
  summands (`Partial`).
- `D!` is never cut: every rank needs it whole. `_` is such a dimension without a name.
- `2F` is two parts of F, one behind the other, each cut by itself. `1` is a dimension of one
  element.
- `...` is any number of leading dimensions, which are cut alike everywhere.
- `-` is an argument that is no tensor, or is the same on every rank. Trailing arguments may be left
  out of a call; the step's context is no argument.
- `V[T]` is an argument of dimensions T whose numbers count the elements of V. Where V is cut, a
  rank's numbers are less its first one, and the operator says what numbers outside of V do.
- The results are linear in all arguments marked `~` together: where those are summands, so are the
  results. Where a cut letter is summed over, marked arguments without it are summands.
- `K<N`, behind a semicolon: where K is cut, N is cut with it; N may be cut further, where one unit
  of K is left or K counts tokens (kv heads that several ranks share; keys of all tokens for some
  of the queries).
- `X=routing.top_k`, behind the semicolon: the option that says how large X is, which no argument
  has.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class ParallelGroup(Enum):
    """Named groups of ranks over which letters are spread; of one pipeline stage each."""

    ATTN_DP = "attn_dp"
    """Requests: each partition has its own cache and computes its own tokens' attention."""
    ATTN_CP = "attn_cp"
    """Query tokens of a step; each rank has the whole cache of its partition."""
    ATTN_TP = "attn_tp"
    """Heads, and with them the cache."""
    DENSE_TP = "dense_tp"
    """Features of dense MLPs."""
    MOE_TP_EP = "moe_tp_ep"
    MOE_EP = "moe_ep"
    """Experts."""
    MOE_TP = "moe_tp"
    """Features of each expert."""
    VOCAB_TP = "vocab_tp"
    """Rows of the embedding and of the head."""


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
