"""The half of a communicator that is the same for all: arguments, the text of a call, one rank.

A subclass moves the tensors. It is called with arguments that are right on their own, never for a
group of one rank, and never after `close` or `abort`.
Legend: P ranks, S rows, D features.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

REDUCTIONS = ("sum", "max")


class RankCommunicator(ABC):
    """One rank's end of a group; a subclass satisfies tokenspeed_sdk.Communicator."""

    features: frozenset[str] = frozenset()

    def __init__(self, *, rank: int, size: int, device: torch.device, timeout_s: float) -> None:
        if not 0 <= rank < size:
            raise ValueError(
                f"rank is {rank}, a group of {size} has 0 to {size - 1}; start such a rank"
            )
        self.rank, self.size = rank, size
        self._device, self._timeout_s = device, timeout_s
        self._is_open = True

    def all_reduce(self, x: torch.Tensor, *, reduction: str = "sum") -> torch.Tensor:
        """Reduce everybody's tensor."""
        if reduction not in REDUCTIONS:
            raise ValueError(f"reduction is {reduction!r}, allowed: {', '.join(REDUCTIONS)}")
        call = self._call(_REDUCE[reduction], x.shape, x.dtype)
        return x.clone() if self.size == 1 else self._all_reduce(call, x, reduction)

    def all_gather(self, x: torch.Tensor, *, sizes: Sequence[int] | None = None) -> torch.Tensor:
        """Join everybody's rows."""
        sizes = [len(x)] * self.size if sizes is None else self._checked(sizes)
        if sizes[self.rank] != len(x):
            raise ValueError(f"all_gather: {len(x)} rows, sizes say {sizes[self.rank]}")
        call = self._call(f"all_gather {list(sizes)}", (0, *x.shape[1:]), x.dtype)
        return x.clone() if self.size == 1 else self._all_gather(call, x, sizes)

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
        call = self._call(f"reduce_scatter {list(sizes)}", x.shape, x.dtype)
        return x.clone() if self.size == 1 else self._reduce_scatter(call, x, sizes)

    def all_to_all(
        self, x: torch.Tensor, *, send_sizes: Sequence[int], receive_sizes: Sequence[int]
    ) -> torch.Tensor:
        """Take from each rank the rows that it has for this one."""
        send_sizes, receive_sizes = self._checked(send_sizes), self._checked(receive_sizes)
        if sum(send_sizes) != len(x):
            raise ValueError(f"all_to_all: {len(x)} rows, send_sizes sum to {sum(send_sizes)}")
        if send_sizes[self.rank] != receive_sizes[self.rank]:
            raise ValueError(
                f"all_to_all: {send_sizes[self.rank]} rows for this rank itself, receive_sizes "
                f"say {receive_sizes[self.rank]}"
            )
        call = self._call("all_to_all", (0, *x.shape[1:]), x.dtype)
        if self.size == 1:
            return x.clone()
        return self._all_to_all(call, x, send_sizes, receive_sizes)

    def broadcast(self, x: torch.Tensor, *, root: int = 0) -> torch.Tensor:
        """Take the root's tensor."""
        if not 0 <= root < self.size:
            raise ValueError(f"broadcast: root is {root}, ranks are 0 to {self.size - 1}")
        call = self._call(f"broadcast from {root}", x.shape, x.dtype)
        return x.clone() if self.size == 1 else self._broadcast(call, x, root)

    def barrier(self) -> None:
        """Meet everybody."""
        call = self._call("barrier", (), None)
        if self.size > 1:
            self._barrier(call)

    def abort(self, reason: str) -> None:
        """Leave because of a failure."""
        if self._is_open:
            self._is_open = False
            self._leave(reason)

    def close(self) -> None:
        """Leave in peace."""
        if self._is_open:
            self._is_open = False
            self._leave("")

    @abstractmethod
    def _all_reduce(self, call: str, x: torch.Tensor, reduction: str) -> torch.Tensor: ...

    @abstractmethod
    def _all_gather(self, call: str, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor: ...

    @abstractmethod
    def _reduce_scatter(self, call: str, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor: ...

    @abstractmethod
    def _all_to_all(
        self,
        call: str,
        x: torch.Tensor,
        send_sizes: Sequence[int],
        receive_sizes: Sequence[int],
    ) -> torch.Tensor: ...

    @abstractmethod
    def _broadcast(self, call: str, x: torch.Tensor, root: int) -> torch.Tensor: ...

    @abstractmethod
    def _barrier(self, call: str) -> None: ...

    @abstractmethod
    def _leave(self, reason: str) -> None:
        """Leave the group; with a reason, because of a failure."""

    def _call(self, name: str, shape: Sequence[int], dtype: torch.dtype | None) -> str:
        """Return the text of a call: with it everything that must be alike on all ranks."""
        call = _text(name, tuple(shape), dtype)
        if not self._is_open:
            raise ValueError(f"rank {self.rank} has left; it cannot call {call}")
        return call

    def _checked(self, sizes: Sequence[int]) -> Sequence[int]:
        if len(sizes) != self.size or min(sizes) < 0:
            raise ValueError(f"sizes are {list(sizes)}, {self.size} from 0 on are needed")
        return sizes

    def _check_peer(self, call: str, peer: int) -> None:
        if not 0 <= peer < self.size or peer == self.rank:
            raise ValueError(
                f"{call}: rank {self.rank} of {self.size} cannot exchange with rank {peer}; give "
                "another rank of the group"
            )


_REDUCE = {reduction: f"all_reduce {reduction}" for reduction in REDUCTIONS}


@functools.lru_cache(maxsize=4096)
def _text(name: str, shape: tuple[int, ...], dtype: torch.dtype | None) -> str:
    return name if dtype is None else f"{name} of {shape} {str(dtype).removeprefix('torch.')}"


def reduced(parts: Sequence[torch.Tensor], reduction: str) -> torch.Tensor:
    """Return the sum, in the order of the parts and in float32 or wider, or the maximum.

    Args:
        parts: one shape and dtype, one or more.
    """
    import torch

    wide = torch.promote_types(parts[0].dtype, torch.float32)
    total = parts[0].to(wide, copy=True)
    for part in parts[1:]:
        total = total.add_(part) if reduction == "sum" else torch.maximum(total, part.to(wide))
    return total.to(parts[0].dtype)
