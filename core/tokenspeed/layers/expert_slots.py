"""Where the experts of one layer lie, where that may change: choices to slots, and counts.

Each rank has as many slots; slots of all ranks are numbered in a row. An expert may have several:
its tokens take them in turn, by their place in the step.
Legend: T tokens, X experts chosen a token, E experts, C copies of an expert, S slots of this rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.placement.balance import first_placement

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class ExpertSlots:
    """The slots of a layer, as one rank of a group sees them.

    Args:
        experts: of the layer.
        ranks, place: of the group over which experts are spread, and this rank's place in it.
        spare: slots of a rank beyond its share.
    """

    def __init__(
        self, experts: int, *, ranks: int, place: int, spare: int, device: torch.device
    ) -> None:
        import torch

        self.num_slots = experts // ranks + spare
        self.first = place * self.num_slots
        self._experts = experts
        self._counts_S = torch.zeros(self.num_slots + 1, dtype=torch.int64, device=device)
        """Choices computed in each slot since the last `take_counts`; last: elsewhere."""
        self.placement: tuple[int, ...] = ()
        self.put(first_placement(experts, ranks, spare))

    def put(self, placement: Sequence[int]) -> None:
        """Take note of the expert in each slot of all ranks."""
        import torch

        slots: list[list[int]] = [[] for _ in range(self._experts)]
        for slot, expert in enumerate(placement):
            slots[expert].append(slot)
        most = max(map(len, slots))
        device = self._counts_S.device
        rows = [own + own[:1] * (most - len(own)) for own in slots]
        self._slots_EC = torch.tensor(rows, device=device)
        self._copies_E = torch.tensor([len(own) for own in slots], device=device)
        self.placement = tuple(placement)

    def slots_of(self, experts_TX: torch.Tensor) -> torch.Tensor:
        """Return (T, X) int64: the slot of all ranks that computes each choice."""
        import torch

        rows_T1 = torch.arange(len(experts_TX), device=experts_TX.device)[:, None]
        return self._slots_EC[experts_TX, rows_T1 % self._copies_E[experts_TX]]

    def own(self, slots_TX: torch.Tensor) -> torch.Tensor:
        """Return the numbers that this rank's backend knows, counted; others are out of range."""
        import torch

        own_TX = slots_TX - self.first
        is_elsewhere = (own_TX < 0) | (own_TX >= self.num_slots)
        counted = own_TX.masked_fill(is_elsewhere, self.num_slots).flatten()
        self._counts_S.scatter_add_(0, counted, torch.ones_like(counted))
        return own_TX

    def take_counts(self) -> torch.Tensor:
        """Return (S,) int64, the choices that each own slot computed; counting begins anew."""
        counts_S = self._counts_S[: self.num_slots].clone()
        self._counts_S.zero_()
        return counts_S
