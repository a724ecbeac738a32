"""Where the experts of one layer lie, where that may change: choices to slots, and counts.

Each rank has as many slots; slots of all ranks are numbered in a row. An expert may have several:
its tokens take them in turn, by their place in the step.
Legend: T tokens, X experts chosen a token, E experts, C copies of an expert, S slots of this rank.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.ops import moe
from tokenspeed.placement.balance import first_placement

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch

    from tokenspeed.contracts.kernel import KernelBinder


class ExpertSlots:
    """The slots of a layer, as one rank of a group sees them.

    Args:
        experts: of the layer.
        ranks, place: of the group over which experts are spread, and this rank's place in it.
        spare: slots of a rank beyond its share.
        kernels: bind what steps compute.
        device: of the tables and counts.
    """

    def __init__(
        self,
        experts: int,
        *,
        ranks: int,
        place: int,
        spare: int,
        kernels: KernelBinder,
        device: torch.device,
    ) -> None:
        import torch

        self._slots: Callable[..., torch.Tensor] = kernels.bind(moe.slots)
        self._count: Callable[..., torch.Tensor] = kernels.bind(moe.count)

        self.num_slots = experts // ranks + spare
        self.first = place * self.num_slots
        self._experts = experts
        self._counts_S = torch.zeros(self.num_slots + 1, dtype=torch.int64, device=device)
        """Choices computed in each slot since the last `take_counts`; last: elsewhere."""
        self.placement: tuple[int, ...] = ()
        # Written in place: captured steps keep the addresses.
        most_copies = 1 + ranks * spare
        self._slots_EC = torch.zeros(experts, most_copies, dtype=torch.int64, device=device)
        self._copies_E = torch.zeros(experts, dtype=torch.int64, device=device)
        self.put(first_placement(experts, ranks, spare))

    def put(self, placement: Sequence[int]) -> None:
        """Take note of the expert in each slot of all ranks."""
        import torch

        slots: list[list[int]] = [[] for _ in range(self._experts)]
        for slot, expert in enumerate(placement):
            slots[expert].append(slot)
        most = self._slots_EC.shape[1]
        rows = [own + own[:1] * (most - len(own)) for own in slots]
        self._slots_EC.copy_(torch.tensor(rows))
        self._copies_E.copy_(torch.tensor([len(own) for own in slots]))
        self.placement = tuple(placement)

    def slots_of(self, experts_TX: torch.Tensor) -> torch.Tensor:
        """Return (T, X) int64: the slot of all ranks that computes each choice."""
        return self._slots(experts_TX, self._slots_EC, self._copies_E)

    def own(self, slots_TX: torch.Tensor) -> torch.Tensor:
        """Return the numbers that this rank's backend knows, counted; others are out of range."""
        return self._count(slots_TX, self._counts_S, first=self.first)

    def take_counts(self) -> torch.Tensor:
        """Return (S,) int64, the choices that each own slot computed; counting begins anew."""
        counts_S = self._counts_S[: self.num_slots].clone()
        self._counts_S.zero_()
        return counts_S
