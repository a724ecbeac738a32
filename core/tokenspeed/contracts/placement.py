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
  summands.
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

from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tokenspeed.contracts.kernel import Operator


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
    MOE_EP = "moe_ep"
    """Experts."""
    MOE_TP = "moe_tp"
    """Features of each expert."""
    VOCAB_TP = "vocab_tp"
    """Rows of the embedding and of the head."""


class Shards(Protocol):
    """What one rank of several holds of a model; its layers are told before weights come."""

    @property
    def is_first_stage(self) -> bool:
        """Whether the rank's pipeline stage has the embedding."""
        ...

    @property
    def is_last_stage(self) -> bool:
        """Whether the rank's pipeline stage has the final norm and the head."""
        ...

    @property
    def spare_experts(self) -> int | None:
        """Return how many slots a rank has beyond its share of experts; None: they never move."""
        ...

    def holds_layer(self, layer: int) -> bool:
        """Say whether a decoder layer is part of the rank's pipeline stage."""
        ...

    def place(self, group: ParallelGroup, units: int) -> tuple[int, int]:
        """Return (parts that so many equal units are cut into, which of them is the rank's).

        They are cut over the first axes of the group, as far as it goes.
        """
        ...


class Recorder(Protocol):
    """Notes what a model calls while it is traced (`placement/trace.py`)."""

    held: Any
    """Stands for the tensors that a layer holds: layers call recorded kernels with it."""

    def module(
        self,
        layer: object,
        rule: str,
        *,
        method: str = "",
        weights: Sequence[Sequence[Sequence[int]]] = (),
        spread: Mapping[str, ParallelGroup] | None = None,
        units: Mapping[str, Sequence[int]] | None = None,
        dtypes: Sequence[str] = (),
        operator: Operator | None = None,
        exchanged: str = "",
    ) -> Callable[..., Any]:
        """Return a callable that notes a call of `layer`, or of one of its methods.

        What it is called with are the arguments of the layer's call; `held` is left out, and so are
        keyword arguments that the rule does not name.

        Args:
            rule: placement rule of the layer's arguments, then its weights.
            weights: sizes of the segments of each dimension of each weight, of all ranks together.
            spread: letter -> group over which it is cut.
            units: letter -> how many equal units each of its segments has; a unit is never cut.
            dtypes: torch's names for the results; "" or none: the first argument's.
            operator: that the layer calls and does nothing else.
            exchanged: letter whose parts tokens may be sent to, each to the ranks that hold what
                its numbers choose; the layer says which do (`executor/exchange.py`).
        """
        ...
