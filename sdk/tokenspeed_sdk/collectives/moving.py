"""Every collective from two movements of bytes, for transports that only move.

    _move      each rank has bytes for each other, of any sizes
    _collect   every rank gets everybody's bytes, of one size

Sums are taken here, in the order of the ranks and in float32 or wider: every rank gets the same
bits, those of the operator's definition.
Legend: P ranks, S rows, D features.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING

from tokenspeed_sdk.collectives.base import reduced
from tokenspeed_sdk.collectives.process_communicator import ProcessCommunicator

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch


class MovingCommunicator(ProcessCommunicator):
    """Computes collectives; a subclass moves bytes and begins calls."""

    @abstractmethod
    def _meet(
        self, call: str, data: torch.Tensor, *, largest: int = -1
    ) -> list[torch.Tensor] | None:
        """Begin a call, and bring what is small.

        Args:
            data: (bytes,) of this rank.
            largest: bytes of the largest rank's data; below 0: all have as many.
        Returns:
            Everybody's bytes, or None: they are still to be moved.
        """

    @abstractmethod
    def _move(
        self,
        data: torch.Tensor,
        send_bytes: Sequence[int],
        output: torch.Tensor,
        receive_bytes: Sequence[int],
    ) -> None:
        """Give each rank its bytes of `data`, and fill `output` with what each has for this one."""

    @abstractmethod
    def _collect(self, data: torch.Tensor, output: torch.Tensor) -> None:
        """Fill `output` (P, bytes) with everybody's `data` (1, bytes)."""

    @abstractmethod
    def _spread(self, data: torch.Tensor, root: int) -> None:
        """Overwrite `data` with the root's bytes."""

    def _check_counts(self, send_sizes: Sequence[int], receive_sizes: Sequence[int]) -> None:
        """Compare what ranks send with what they expect, where the transport does not."""

    def _all_reduce(self, call: str, x: torch.Tensor, reduction: str) -> torch.Tensor:
        data = bytes_of(x)
        parts = self._meet(call, data)
        if parts is not None:
            return reduced([part.view(x.dtype) for part in parts], reduction).view(x.shape)
        flat = data.view(x.dtype)
        own = self._summed(flat, _equal_parts(len(flat), self.size), reduction)
        return self._joined(own, _equal_parts(len(flat), self.size)).view(x.shape)

    def _all_gather(self, call: str, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        import torch

        # What fits is decided by the largest, alike on every rank.
        row_bytes = _row_elements(x) * x.element_size()
        parts = self._meet(call, bytes_of(x), largest=max(sizes) * row_bytes)
        if parts is not None:
            rows = [part.view(x.dtype).view(-1, *x.shape[1:]) for part in parts if len(part)]
            return torch.cat(rows) if rows else x.clone()
        flat = bytes_of(x).view(x.dtype)
        joined = self._joined(flat, [size * _row_elements(x) for size in sizes])
        return joined.view(sum(sizes), *x.shape[1:])

    def _reduce_scatter(self, call: str, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        data, first = bytes_of(x), sum(sizes[: self.rank])
        parts = self._meet(call, data)
        if parts is not None:
            own = slice(first, first + sizes[self.rank])
            return reduced([part.view(x.dtype).view(x.shape)[own] for part in parts], "sum")
        row = _row_elements(x)
        total = self._summed(data.view(x.dtype), [size * row for size in sizes], "sum")
        return total.view(sizes[self.rank], *x.shape[1:])

    def _all_to_all(
        self,
        call: str,
        x: torch.Tensor,
        send_sizes: Sequence[int],
        receive_sizes: Sequence[int],
    ) -> torch.Tensor:
        import torch

        self._meet(call, torch.empty(0, dtype=torch.uint8))
        self._check_counts(send_sizes, receive_sizes)
        row = _row_elements(x) * x.element_size()
        output = torch.empty((sum(receive_sizes), *x.shape[1:]), dtype=x.dtype, device=x.device)
        self._move(
            bytes_of(x),
            [size * row for size in send_sizes],
            bytes_of(output),
            [size * row for size in receive_sizes],
        )
        return output

    def _broadcast(self, call: str, x: torch.Tensor, root: int) -> torch.Tensor:
        data = bytes_of(x)
        parts = self._meet(call, data)
        if parts is not None:
            return parts[root].view(x.dtype).view(x.shape)
        output = data.clone()
        self._spread(output, root)
        return output.view(x.dtype).view(x.shape)

    def _summed(self, flat: torch.Tensor, counts: Sequence[int], reduction: str) -> torch.Tensor:
        """Return this rank's part of the reduced elements."""
        import torch

        own = counts[self.rank]
        gathered = torch.empty(own * self.size, dtype=flat.dtype, device=flat.device)
        width = flat.element_size()
        self._move(
            bytes_of(flat),
            [count * width for count in counts],
            bytes_of(gathered),
            [own * width] * self.size,
        )
        return reduced(gathered.view(self.size, own).unbind(0), reduction)

    def _joined(self, own: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Return everybody's elements, one rank after another."""
        import torch

        most = max(counts)
        padded = torch.zeros((1, most), dtype=own.dtype, device=own.device)
        padded[0, : len(own)] = own
        output = torch.empty((self.size, most), dtype=own.dtype, device=own.device)
        self._collect(padded.view(torch.uint8), output.view(torch.uint8))
        if min(counts) == most:
            return output.view(-1)
        return torch.cat([row[:count] for row, count in zip(output, counts, strict=True)])


def bytes_of(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes: its own memory if it is contiguous."""
    import torch

    return x.contiguous().view(-1).view(torch.uint8)


def _row_elements(x: torch.Tensor) -> int:
    return math.prod(x.shape[1:])


def _equal_parts(count: int, parts: int) -> list[int]:
    return [count // parts + (part < count % parts) for part in range(parts)]
