"""Communicator between threads of one process: the plain meaning of every collective.

Each rank brings a copy of its tensor and computes its own part from everybody's; sums run in the
order of the ranks in float32 or wider, so that all get the same bits.
Legend: P ranks, S rows, D features.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tokenspeed_reference import rendezvous as meeting

REDUCTIONS = ("sum", "max")


class ThreadCommunicator:
    """One rank's end; satisfies tokenspeed_sdk.Communicator."""

    features: frozenset[str] = frozenset()

    def __init__(
        self, *, rank: int, size: int, rendezvous: str, device: torch.device, timeout_s: float
    ) -> None:
        self.rank, self.size = rank, size
        self._group = meeting.join(rendezvous, rank, size)
        self._device = device
        self._timeout_s = timeout_s
        self._is_open = True

    def all_reduce(self, x: torch.Tensor, *, reduction: str = "sum") -> torch.Tensor:
        """Reduce everybody's tensor."""
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction is {reduction!r}, allowed: {', '.join(REDUCTIONS)}")
        return _reduced(self._exchange(f"all_reduce {reduction}{_like(x)}", x), reduction)

    def all_gather(self, x: torch.Tensor, *, sizes: Sequence[int] | None = None) -> torch.Tensor:
        """Join everybody's rows."""
        sizes = [len(x)] * self.size if sizes is None else self._checked(sizes)
        if sizes[self.rank] != len(x):
            raise ValueError(f"all_gather: {len(x)} rows, sizes say {sizes[self.rank]}")
        parts = self._exchange(f"all_gather {list(sizes)}{_like(x[:0])}", x)
        return torch.cat(parts)

    def reduce_scatter(
        self, x: torch.Tensor, *, sizes: Sequence[int] | None = None
    ) -> torch.Tensor:
        """Sum everybody's tensor and keep this rank's rows."""
        if sizes is None:
            if len(x) % self.size:
                raise ValueError(f"reduce_scatter: {len(x)} rows for {self.size} ranks; give sizes")
            sizes = [len(x) // self.size] * self.size
        sizes = self._checked(sizes)
        if sum(sizes) != len(x):
            raise ValueError(f"reduce_scatter: {len(x)} rows, sizes sum to {sum(sizes)}")
        parts = self._exchange(f"reduce_scatter {list(sizes)}{_like(x)}", x)
        first = sum(sizes[: self.rank])
        own = slice(first, first + sizes[self.rank])
        return _reduced([part[own] for part in parts], "sum")

    def all_to_all(
        self, x: torch.Tensor, *, send_sizes: Sequence[int], receive_sizes: Sequence[int]
    ) -> torch.Tensor:
        """Take from each rank the rows that it has for this one."""
        send_sizes, receive_sizes = self._checked(send_sizes), self._checked(receive_sizes)
        if sum(send_sizes) != len(x):
            raise ValueError(f"all_to_all: {len(x)} rows, send_sizes sum to {sum(send_sizes)}")
        parts = self._exchange(f"all_to_all{_like(x[:0])}", x.split_with_sizes(list(send_sizes)))
        own = [part[self.rank] for part in parts]
        if [len(part) for part in own] != list(receive_sizes):
            sent = [len(part) for part in own]
            self.abort(
                f"rank {self.rank} expects {list(receive_sizes)} rows, the others send {sent}"
            )
            self._group.check()
        return torch.cat(own)

    def broadcast(self, x: torch.Tensor, *, root: int = 0) -> torch.Tensor:
        """Take the root's tensor."""
        if not 0 <= root < self.size:
            raise ValueError(f"broadcast: root is {root}, ranks are 0 to {self.size - 1}")
        parts = self._exchange(f"broadcast from {root}{_like(x)}", x)
        return parts[root].clone()

    def barrier(self) -> None:
        """Meet everybody."""
        self._exchange("barrier", torch.empty(0))

    def abort(self, reason: str) -> None:
        """Leave because of a failure."""
        self._leave(reason)

    def close(self) -> None:
        """Leave in peace."""
        self._leave("")

    def _exchange(
        self, call: str, item: torch.Tensor | Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        if not self._is_open:
            raise ValueError(f"rank {self.rank} has left; it cannot call {call}")
        # A copy: the caller may overwrite its tensor while others still read this one.
        own = item.clone() if isinstance(item, torch.Tensor) else [part.clone() for part in item]
        return self._group.exchange(self.rank, call, own, timeout_s=self._timeout_s)

    def _checked(self, sizes: Sequence[int]) -> Sequence[int]:
        if len(sizes) != self.size or min(sizes) < 0:
            raise ValueError(f"sizes are {list(sizes)}, {self.size} from 0 on are needed")
        return sizes

    def _leave(self, reason: str) -> None:
        if self._is_open:
            self._is_open = False
            meeting.leave(self._group, self.rank, reason)


def _like(x: torch.Tensor) -> str:
    """Return what must be alike on all ranks, as text for their comparison."""
    return f" of {tuple(x.shape)} {str(x.dtype).removeprefix('torch.')}"


def _reduced(parts: Sequence[torch.Tensor], reduction: str) -> torch.Tensor:
    wide = torch.promote_types(parts[0].dtype, torch.float32)
    total = parts[0].to(wide, copy=True)
    for part in parts[1:]:
        total = total.add_(part) if reduction == "sum" else torch.maximum(total, part.to(wide))
    return total.to(parts[0].dtype)
