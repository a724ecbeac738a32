"""Moves experts between ranks, between two steps, so that all ranks have as much to compute.

Every rank runs the same steps, so all of them come here before the same one. They gather how often
each slot of a layer was asked for, compute the same placement from it, send each other the weights
that have to move, and note the new slots. Steps before and after compute the same results. Layers
have their turns one after the other, so that no step waits for all of them.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from tokenspeed.placement.balance import balanced, copies_between, peak
from tokenspeed.placement.expert_load import ExpertLoad

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch

    from tokenspeed.contracts.communicator import Communicator
    from tokenspeed.layers.expert_slots import ExpertSlots
    from tokenspeed.layers.moe import Experts
    from tokenspeed.placement.balance import Copy


class ExpertBalancer:
    """One rank's part.

    Args:
        layers: index of the decoder layer -> its experts; of this rank's stage.
        communicator: of the ranks over which experts are spread, by their places.
        interval: steps between two looks at a layer.
    """

    def __init__(
        self, layers: Mapping[int, Experts], communicator: Communicator, *, interval: int
    ) -> None:
        self._layers = layers
        self._communicator = communicator
        self._interval = interval
        self._steps = 0
        self.load = ExpertLoad()
        for layer, experts in layers.items():
            assert experts.slots is not None, "experts that are balanced have slots"
            self.load.counts[layer] = [0] * experts.group.num_experts
            self.load.placements[layer] = experts.slots.placement

    def before_step(self) -> None:
        """Look at the layers whose turn it is; every rank calls it before each step."""
        turn = self._steps % self._interval
        for index, (layer, experts) in enumerate(self._layers.items()):
            if self._steps and index * self._interval // len(self._layers) == turn:
                self._balance(layer, experts)
        self._steps += 1

    def _balance(self, layer: int, experts: Experts) -> None:
        assert experts.slots is not None, "experts that are balanced have slots"
        now = self.load.placements[layer]
        counts = self._counts(experts.slots, now)
        self._note(layer, counts)
        then = balanced(counts, self._communicator.size, now)
        if then is now:
            return
        copies = copies_between(now, then, self._communicator.size)
        for tensor in experts.tensors():
            self._copy(tensor, copies, experts.num_slots)
        experts.slots.put(then)
        self.load.placements[layer] = then
        self.load.rebalanced += 1
        self.load.moved += len(copies)

    def _counts(self, slots: ExpertSlots, placement: Sequence[int]) -> list[int]:
        """Return how often each expert was chosen, on all ranks, since the last look."""
        of_all = self._communicator.all_gather(slots.take_counts()).tolist()
        counts = [0] * (max(placement) + 1)
        for expert, count in zip(placement, of_all, strict=True):
            counts[expert] += count
        return counts

    def _note(self, layer: int, counts: Sequence[int]) -> None:
        self.load.times += 1
        total = self.load.counts[layer]
        self.load.counts[layer] = [one + more for one, more in zip(total, counts, strict=True)]
        ranks, placement = self._communicator.size, self.load.placements[layer]
        average = sum(counts) / ranks
        self.load.peaks[layer] = peak(counts, ranks, placement) / average if average else 1.0

    def _copy(self, tensor: torch.Tensor, copies: Sequence[Copy], num_slots: int) -> None:
        """Copy rows between the ranks' tensors: all are read before any is written."""
        rank, size = self._communicator.rank, self._communicator.size
        goes = [[copy.source % num_slots for copy in copies
                 if copy.source // num_slots == rank and copy.target // num_slots == other]
                for other in range(size)]  # fmt: skip
        comes = [[copy.target % num_slots for copy in copies
                  if copy.target // num_slots == rank and copy.source // num_slots == other]
                 for other in range(size)]  # fmt: skip
        rows = self._communicator.all_to_all(
            tensor[list(chain(*goes))],
            send_sizes=[len(own) for own in goes],
            receive_sizes=[len(own) for own in comes],
        )
        tensor[list(chain(*comes))] = rows
