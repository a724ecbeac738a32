"""Communicator between threads of one process: the plain meaning of every collective.

Each rank brings a copy of its tensor and computes its own part from everybody's; sums run in the
order of the ranks in float32 or wider, so that all get the same bits.
Legend: P ranks, S rows, D features.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tokenspeed_reference import rendezvous as meeting
from tokenspeed_sdk.collectives import RankCommunicator, reduced

if TYPE_CHECKING:
    from collections.abc import Sequence


class ThreadCommunicator(RankCommunicator):
    """One rank's end; satisfies tokenspeed_sdk.Communicator."""

    def __init__(
        self, *, rank: int, size: int, rendezvous: str, device: torch.device, timeout_s: float
    ) -> None:
        super().__init__(rank=rank, size=size, device=device, timeout_s=timeout_s)
        self._group = meeting.join(rendezvous, rank, size)

    def _all_reduce(self, call: str, x: torch.Tensor, reduction: str) -> torch.Tensor:
        return reduced(self._exchange(call, x), reduction)

    def _all_gather(self, call: str, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        return torch.cat(self._exchange(call, x))

    def _reduce_scatter(self, call: str, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        first = sum(sizes[: self.rank])
        own = slice(first, first + sizes[self.rank])
        return reduced([part[own] for part in self._exchange(call, x)], "sum")

    def _all_to_all(
        self,
        call: str,
        x: torch.Tensor,
        send_sizes: Sequence[int],
        receive_sizes: Sequence[int],
    ) -> torch.Tensor:
        parts = self._exchange(call, x.split_with_sizes(list(send_sizes)))
        own = [part[self.rank] for part in parts]
        sent = [len(part) for part in own]
        if sent != list(receive_sizes):
            self.abort(
                f"rank {self.rank} expects {list(receive_sizes)} rows, the others send {sent}"
            )
            self._group.check()
        return torch.cat(own)

    def _broadcast(self, call: str, x: torch.Tensor, root: int) -> torch.Tensor:
        return self._exchange(call, x)[root].clone()

    def _barrier(self, call: str) -> None:
        self._exchange(call, torch.empty(0))

    def _exchange(
        self, call: str, item: torch.Tensor | Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        # A copy: the caller may overwrite its tensor while others still read this one.
        own = item.clone() if isinstance(item, torch.Tensor) else [part.clone() for part in item]
        return self._group.exchange(self.rank, call, own, timeout_s=self._timeout_s)

    def _leave(self, reason: str) -> None:
        meeting.leave(self._group, self.rank, reason)
