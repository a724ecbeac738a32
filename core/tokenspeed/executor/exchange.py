"""Exchanging tokens: each goes to the ranks that hold its experts, and their sums come back.

    how many rows for whom ->  rows: numbers, weights, x ->  computed there ->  sums, added here

A rank's own rows take the same way. Ranks without tokens take part with none. Sums are added in the
order of the ranks, in float32 or wider.
Legend: T tokens, X experts chosen a token, D hidden, P ranks, S rows that come to this rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenspeed.contracts.communicator import Communicator

    Compute = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


class Holder(Protocol):
    """A layer whose weights lie in slots of several ranks."""

    @property
    def num_slots(self) -> int:
        """Of one rank; the first ones are the first rank's."""
        ...

    def slots_of(self, experts_TX: torch.Tensor) -> torch.Tensor:
        """Return (T, X), which slot of all ranks computes each choice."""
        ...

    def at_slots(
        self, x_SD: torch.Tensor, slots_SX: torch.Tensor, weights_SX: torch.Tensor
    ) -> torch.Tensor:
        """Return (S, D), the sum of what this rank's slots make of each row."""
        ...


def exchanging(holder: Holder, communicator: Communicator) -> Compute:
    """Return what computes a holder's call with tokens that are cut over the communicator's ranks.

    Returns:
        (x (T, D), experts (T, X), weights (T, X)) of this rank's tokens to (T, D).
    """
    ones = [1] * communicator.size

    def compute(
        x_TD: torch.Tensor, experts_TX: torch.Tensor, weights_TX: torch.Tensor
    ) -> torch.Tensor:
        slots_TX = holder.slots_of(experts_TX)
        goes_TP = x_TD.new_zeros(len(x_TD), communicator.size, dtype=torch.bool)
        goes_TP.scatter_(1, slots_TX // holder.num_slots, True)
        counts_P = goes_TP.sum(0)
        coming_P = communicator.all_to_all(counts_P, send_sizes=ones, receive_sizes=ones)
        sent, received = torch.stack((counts_P, coming_P)).tolist()
        tokens = goes_TP.T.nonzero()[:, 1]  # the first rank's, each rank's in their order
        parts = slots_TX[tokens], weights_TX[tokens], x_TD[tokens]
        rows = communicator.all_to_all(_packed(parts), send_sizes=sent, receive_sizes=received)
        slots_SX, weights_SX, x_SD = _unpacked(rows, parts)
        sums_SD = holder.at_slots(x_SD, slots_SX, weights_SX)
        back = communicator.all_to_all(sums_SD, send_sizes=received, receive_sizes=sent)
        return _added(x_TD, tokens.split_with_sizes(sent), back.split_with_sizes(sent))

    return compute


def _packed(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return (rows, bytes): the rows of several tensors side by side."""
    return torch.cat([part.contiguous().view(torch.uint8) for part in parts], dim=1)


def _unpacked(rows: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    widths = [part.shape[1] * part.element_size() for part in like]
    columns = rows.split_with_sizes(widths, dim=1)
    return [
        column.clone(memory_format=torch.contiguous_format).view(part.dtype)
        for column, part in zip(columns, like, strict=True)
    ]


def _added(
    x_TD: torch.Tensor, tokens: Sequence[torch.Tensor], sums: Sequence[torch.Tensor]
) -> torch.Tensor:
    wide = torch.promote_types(x_TD.dtype, torch.float32)
    out_TD = torch.zeros_like(x_TD, dtype=wide)
    for own, part in zip(tokens, sums, strict=True):
        out_TD.index_add_(0, own, part.to(wide))  # no token twice in a part: the order is fixed
    return out_TD.to(x_TD.dtype)
