"""Communicator between processes on CPUs, over gloo: of one host, or of several.

Every call begins with one message of fixed size from each rank to all: the call's text, which is
compared, and as much of the tensor as fits; a small tensor needs no second one. Sums are taken here,
in the order of the ranks and in float32 or wider: every rank gets the same bits, those of the
operator's definition.
Legend: P ranks, S rows, D features.
"""

from __future__ import annotations

import math
import struct
import time
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from tokenspeed_sdk.collectives import ProcessCommunicator, never_destroyed, reduced

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed import Store, Work

MESSAGE_BYTES = 8192
"""Of a first message: its cost is that of a short one."""
_HEAD = struct.Struct("<HI")  # bytes of the text, bytes of the tensor
MAX_TEXT = 1000
ALIGNMENT = 16
SLICE = timedelta(milliseconds=100)
"""How often a waiting rank looks whether the group broke."""
SPARE_S = 30.0
"""What gloo waits longer than this group, so that the group's own reason is the first."""


class GlooCommunicator(ProcessCommunicator):
    """One rank's end; satisfies tokenspeed_sdk.Communicator."""

    features: frozenset[str] = frozenset({"send_receive"})

    def __init__(
        self, *, rank: int, size: int, rendezvous: str, device: torch.device, timeout_s: float
    ) -> None:
        self._held: list[Any] = []
        self._pool: ThreadPoolExecutor | None = None
        self._own = torch.zeros((1, MESSAGE_BYTES), dtype=torch.uint8)
        self._all = torch.zeros((size, MESSAGE_BYTES), dtype=torch.uint8)
        super().__init__(
            rank=rank, size=size, rendezvous=rendezvous, device=device, timeout_s=timeout_s
        )

    def send(self, x: torch.Tensor, *, to: int) -> None:
        """Give a tensor to a rank, which calls `receive`."""
        call = self._call(f"{self.rank} sends to {to}", x.shape, x.dtype)
        self._check_peer(call, to)
        data = _bytes_of(x)
        self._pairwise(call, to, lambda: self._group.send([self._message(call, data)], to, 0))
        if len(data) > MESSAGE_BYTES - self._room(call):
            self._pairwise(call, to, lambda: self._group.send([data], to, 1))

    def receive(self, x: torch.Tensor, *, source: int) -> torch.Tensor:
        """Fill a tensor with what a rank sends."""
        call = self._call(f"{source} sends to {self.rank}", x.shape, x.dtype)
        self._check_peer(call, source)
        message = torch.empty((1, MESSAGE_BYTES), dtype=torch.uint8)
        self._pairwise(call, source, lambda: self._group.recv([message], source, 0))
        text, data = _read(message[0])
        if text != _shown(call):
            self._line.fail(f"the ranks' calls do not match (rank {source}: {text}; here: {call})")
            self._line.check()
        whole = x.contiguous()
        target = _bytes_of(whole)
        if len(target) > MESSAGE_BYTES - self._room(call):
            self._pairwise(call, source, lambda: self._group.recv([target], source, 1))
        else:
            target.copy_(data)
        return x if whole is x else x.copy_(whole)

    def _connect(self, store: Store, address: str) -> None:
        from torch.distributed import PrefixStore, ProcessGroupGloo

        options = ProcessGroupGloo._Options()
        options._devices = [ProcessGroupGloo.create_device(hostname=address)]
        options._timeout = timedelta(seconds=self._timeout_s + SPARE_S)
        self._held.append(
            ProcessGroupGloo(PrefixStore("data", store), self.rank, self.size, options)
        )

    @property
    def _group(self) -> Any:
        held = self._held  # another thread lets go of it when the group breaks
        if not held:
            self._line.check()
        return held[0]

    def _all_reduce(self, call: str, x: torch.Tensor, reduction: str) -> torch.Tensor:
        data = _bytes_of(x)
        parts = self._exchange(call, data)
        if parts is not None:
            return reduced([part.view(x.dtype) for part in parts], reduction).view(x.shape)
        flat = data.view(x.dtype)
        own = self._summed(flat, _equal_parts(len(flat), self.size), reduction)
        return self._joined(own, _equal_parts(len(flat), self.size)).view(x.shape)

    def _all_gather(self, call: str, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        # What fits is decided by the largest, alike on every rank.
        row_bytes = _row_elements(x) * x.element_size()
        parts = self._exchange(call, _bytes_of(x), largest=max(sizes) * row_bytes)
        if parts is not None:
            rows = [part.view(x.dtype).view(-1, *x.shape[1:]) for part in parts if len(part)]
            return torch.cat(rows) if rows else x.clone()
        flat = _bytes_of(x).view(x.dtype)
        joined = self._joined(flat, [size * _row_elements(x) for size in sizes])
        return joined.view(sum(sizes), *x.shape[1:])

    def _reduce_scatter(self, call: str, x: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
        data, first = _bytes_of(x), sum(sizes[: self.rank])
        parts = self._exchange(call, data)
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
        counts = torch.tensor([*send_sizes, *receive_sizes], dtype=torch.int32)
        table = self._exchange(call, _bytes_of(counts), always=True)
        assert table is not None, "counts fit a message"
        self._check_counts([part.view(torch.int32).tolist() for part in table])
        row = _row_elements(x) * x.element_size()
        output = torch.empty((sum(receive_sizes), *x.shape[1:]), dtype=x.dtype)
        self._move(
            _bytes_of(x),
            [size * row for size in send_sizes],
            _bytes_of(output),
            [size * row for size in receive_sizes],
        )
        return output

    def _broadcast(self, call: str, x: torch.Tensor, root: int) -> torch.Tensor:
        data = _bytes_of(x)
        parts = self._exchange(call, data)
        if parts is not None:
            return parts[root].view(x.dtype).view(x.shape)
        output = data.clone()
        self._wait(self._group.broadcast([output], _broadcast_options(root)))
        return output.view(x.dtype).view(x.shape)

    def _barrier(self, call: str) -> None:
        self._exchange(call, torch.empty(0, dtype=torch.uint8))

    def _exchange(
        self, call: str, data: torch.Tensor, *, largest: int = -1, always: bool = False
    ) -> list[torch.Tensor] | None:
        """Compare the call with everybody's; return everybody's bytes if the largest fit.

        Otherwise None, and the data is still to be moved.
        """
        self._line.begin(call)
        largest = len(data) if largest < 0 else largest
        room = MESSAGE_BYTES - self._room(call)
        assert not always or largest <= room, f"{largest} bytes in {room}"
        is_whole = largest <= room
        own = self._message(call, data if is_whole else data[:0])
        self._wait(self._group._allgather_base(self._all, own))
        messages = [_read(row) for row in self._all]
        texts = {rank: text for rank, (text, _) in enumerate(messages)}
        if len(set(texts.values())) > 1:
            listed = ", ".join(f"rank {rank}: {text}" for rank, text in texts.items())
            self._line.fail(f"the ranks' calls do not match ({listed})")
            self._line.check()
        return [part.clone() for _, part in messages] if is_whole else None

    def _room(self, call: str) -> int:
        """Return the bytes of a message before the data."""
        return -(-(_HEAD.size + len(_shown(call).encode())) // ALIGNMENT) * ALIGNMENT

    def _message(self, call: str, data: torch.Tensor) -> torch.Tensor:
        text, room = _shown(call).encode(), self._room(call)
        fits = data if len(data) <= MESSAGE_BYTES - room else data[:0]
        head = _HEAD.pack(len(text), len(fits)) + text
        self._own[0, : len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        self._own[0, room : room + len(fits)] = fits
        return self._own

    def _check_counts(self, table: Sequence[Sequence[int]]) -> None:
        """Compare what each rank sends with what each expects; all ranks see the same table."""
        for rank in range(self.size):
            sent = [counts[rank] for counts in table]
            expected = list(table[rank][self.size :])
            if sent != expected:
                self._line.fail(
                    f"rank {rank} expects {expected} rows, the others send {sent} in all_to_all"
                )
                self._line.check()

    def _summed(self, flat: torch.Tensor, counts: Sequence[int], reduction: str) -> torch.Tensor:
        """Return this rank's part of the reduced elements."""
        own = counts[self.rank]
        gathered = torch.empty(own * self.size, dtype=flat.dtype)
        width = flat.element_size()
        self._move(
            _bytes_of(flat),
            [count * width for count in counts],
            _bytes_of(gathered),
            [own * width] * self.size,
        )
        return reduced(gathered.view(self.size, own).unbind(0), reduction)

    def _joined(self, own: torch.Tensor, counts: Sequence[int]) -> torch.Tensor:
        """Return everybody's elements, one rank after another."""
        most = max(counts)
        padded = torch.zeros((1, most), dtype=own.dtype)
        padded[0, : len(own)] = own
        output = torch.empty((self.size, most), dtype=own.dtype)
        data, target = padded.view(torch.uint8), output.view(torch.uint8)
        self._wait(self._group._allgather_base(target, data))
        if min(counts) == most:
            return output.view(-1)
        return torch.cat([row[:count] for row, count in zip(output, counts, strict=True)])

    def _move(
        self,
        data: torch.Tensor,
        send_bytes: Sequence[int],
        output: torch.Tensor,
        receive_bytes: Sequence[int],
    ) -> None:
        self._wait(self._group.alltoall_base(output, data, list(receive_bytes), list(send_bytes)))

    def _wait(self, work: Work) -> None:
        """Wait for gloo, but no longer than the group holds and the time lasts."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            left = timedelta(seconds=max(deadline_s - time.monotonic(), 0.001))
            try:
                work.wait(min(SLICE, left))
            except RuntimeError as error:
                if work.is_completed():  # it failed, and did not only take long
                    self._line.give_up(str(error).partition("\n")[0])
            else:
                return
            self._line.check()
            if time.monotonic() >= deadline_s:
                self._line.give_up("it took too long", waited_s=self._timeout_s)

    def _pairwise(self, call: str, peer: int, start: Callable[[], Work]) -> None:
        """Run one half of an exchange between two ranks; gloo waits for it in a thread."""
        self._line.begin_pairwise(call, peer)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="pairwise")
        future: Future[bool] = self._pool.submit(lambda: start().wait())
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            try:
                future.result(SLICE.total_seconds())
            except FutureTimeout:
                self._line.check()
                if time.monotonic() >= deadline_s:
                    self._line.give_up("it took too long", waited_s=self._timeout_s)
            except RuntimeError as error:
                self._line.give_up(str(error).partition("\n")[0])
            else:
                self._line.end_pairwise()
                return

    def _broken(self) -> None:
        held, self._held = self._held, []
        for group in held:
            never_destroyed(group)

    def _disconnect(self) -> None:
        self._held.clear()
        if self._pool is not None:
            self._pool.shutdown(wait=not self._line.reason)


def _shown(call: str) -> str:
    """Return the text that travels: a long one cut, with its checksum."""
    return call if len(call) <= MAX_TEXT else f"{call[:MAX_TEXT]}... {zlib.crc32(call.encode()):x}"


def _read(message: torch.Tensor) -> tuple[str, torch.Tensor]:
    """Return the text and the bytes of a first message."""
    text_bytes, data_bytes = _HEAD.unpack(message[: _HEAD.size].numpy().tobytes())
    end = _HEAD.size + text_bytes
    room = -(-end // ALIGNMENT) * ALIGNMENT
    text = message[_HEAD.size : end].numpy().tobytes().decode(errors="replace")
    return text, message[room : room + data_bytes]


def _bytes_of(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(-1).view(torch.uint8)


def _row_elements(x: torch.Tensor) -> int:
    return math.prod(x.shape[1:])


def _equal_parts(count: int, parts: int) -> list[int]:
    return [count // parts + (part < count % parts) for part in range(parts)]


def _broadcast_options(root: int) -> Any:
    from torch.distributed import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = root
    return options
