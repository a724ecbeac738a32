"""Communicator slot: collectives between the ranks of one parallel group.

What each collective computes is an operator (`ops/collectives.py`), written for all ranks at once;
a Communicator gives one rank its part. Legend: P ranks, S rows, D features (any trailing axes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

OPTIONAL_METHODS: Mapping[str, tuple[str, ...]] = {
    "send_receive": ("send", "receive"),
    "all_reduce_add_rms_norm": ("all_reduce_add_rms_norm",),
    "late_errors": ("check",),
}
"""Feature -> methods that a communicator with it has, and one without it has not.

`send(x, *, to)` and `receive(x, *, source)` move a tensor between two ranks; the receiver's `x` is
overwritten. `all_reduce_add_rms_norm(x, residual, weight, *, eps)` is `norm.add_rms` of the sum.
`check()` is of communicators whose calls return before the device has made them: called once an
event behind a step's calls has passed (the next step may be under way), it raises if the group
broke; what calls gave since the last check is then worth nothing.

A further feature, "graph_safe", says that the required calls may be captured into a device graph.
"""


class Communicator(Protocol):
    """One rank's end of a group. Required: all methods here; optional ones by `features`.

    An Offer's `load` takes `rank`, `size`, `rendezvous` (text that the ranks of one group share and
    no other group uses), `device` (torch's) and `timeout_s`, and returns at once or once all ranks
    are there. With `size` 1 every call works and none waits.

    Order: every rank makes the same calls in the same order, from one thread. A call returns when
    its result may be used in the caller's stream. Results are new tensors.

    Errors: a rank that leaves (`close` before the others are done, `abort`, its death), calls that
    do not match, and a rank that does not come within `timeout_s` break the group. Every call under
    way or made later then raises EngineError on every rank, naming the rank and the reason; none
    hangs. Arguments that are wrong on their own raise ValueError on their rank, before the others
    are met, and leave the group as it was.
    """

    rank: int
    size: int
    features: frozenset[str]

    def all_reduce(self, x: torch.Tensor, *, reduction: str = "sum") -> torch.Tensor:
        """Return the sum or the maximum over the ranks; the same bits on every rank.

        Args:
            x: float, one shape and dtype on every rank, device; may be overwritten.
            reduction: "sum" or "max".
        """
        ...

    def all_gather(self, x: torch.Tensor, *, sizes: Sequence[int] | None = None) -> torch.Tensor:
        """Return the rows of all ranks, in the order of the ranks: (sum of S, D).

        Args:
            x: (S, D) any dtype, device; D and dtype are the same on every rank.
            sizes: (P,) host, S of every rank, the same on every rank; None: all have S rows.
        """
        ...

    def reduce_scatter(
        self, x: torch.Tensor, *, sizes: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Return this rank's rows of the sum over the ranks: (sizes[rank], D).

        Args:
            x: (sum of sizes, D) float, one shape and dtype on every rank, device.
            sizes: (P,) host, rows of every rank; None: equal parts.
        """
        ...

    def all_to_all(
        self, x: torch.Tensor, *, send_sizes: Sequence[int], receive_sizes: Sequence[int]
    ) -> torch.Tensor:
        """Return the rows that every rank has for this one: (sum of receive_sizes, D).

        Args:
            x: (sum of send_sizes, D) any dtype, device; rows for rank 0 first.
            send_sizes: (P,) host, rows for each rank.
            receive_sizes: (P,) host, rows from each rank: its send_sizes for this rank.
        """
        ...

    def broadcast(self, x: torch.Tensor, *, root: int = 0) -> torch.Tensor:
        """Return the root's tensor.

        Args:
            x: one shape and dtype on every rank, device; only the root's numbers count.
        """
        ...

    def barrier(self) -> None:
        """Return once every rank has called it."""
        ...

    def abort(self, reason: str) -> None:
        """Leave because of a failure: every other rank's calls raise with this reason."""
        ...

    def close(self) -> None:
        """Leave in peace, after the last call; a second time does nothing."""
        ...
