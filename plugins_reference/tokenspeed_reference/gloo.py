"""Communicator between processes on CPUs, over gloo: of one host, or of several.

Every call begins with one message of fixed size from each rank to all: the call's text, which is
compared, and the tensor if it fits.
"""

from __future__ import annotations

import struct
import time
import zlib
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from tokenspeed_sdk.collectives import MovingCommunicator, bytes_of, never_destroyed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch._C._distributed_c10d import Store, Work

MESSAGE_BYTES = 8192
"""Of a first message: its cost is that of a short one."""
_HEAD = struct.Struct("<HI")  # bytes of the text, bytes of the tensor
MAX_TEXT = 1000
ALIGNMENT = 16
SLICE = timedelta(milliseconds=100)
"""How often a waiting rank looks whether the group broke."""
SPARE_S = 30.0
"""What gloo waits longer than this group, so that the group's own reason is the first."""


class GlooCommunicator(MovingCommunicator):
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
        data = bytes_of(x)
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
        target = bytes_of(whole)
        if len(target) > MESSAGE_BYTES - self._room(call):
            self._pairwise(call, source, lambda: self._group.recv([target], source, 1))
        else:
            target.copy_(data)
        return x if whole is x else x.copy_(whole)

    def _connect(self, store: Store, address: str) -> None:
        from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo

        options: Any = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
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

    def _barrier(self, call: str) -> None:
        self._meet(call, torch.empty(0, dtype=torch.uint8))

    def _meet(
        self, call: str, data: torch.Tensor, *, largest: int = -1
    ) -> list[torch.Tensor] | None:
        """Compare the call with everybody's; return everybody's bytes if the largest fit.

        Otherwise None, and the data is still to be moved.
        """
        self._line.begin(call)
        largest = len(data) if largest < 0 else largest
        room = MESSAGE_BYTES - self._room(call)
        is_whole = largest <= room
        own = self._message(call, data if is_whole else data[:0])
        self._collect(own, self._all)
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

    def _check_counts(self, send_sizes: Sequence[int], receive_sizes: Sequence[int]) -> None:
        """Compare what each rank sends with what each expects; all ranks see the same table."""
        own = torch.tensor([[*send_sizes, *receive_sizes]], dtype=torch.int32)
        table = torch.empty((self.size, 2 * self.size), dtype=torch.int32)
        self._collect(own.view(torch.uint8), table.view(torch.uint8))
        counts = table.tolist()
        for rank in range(self.size):
            sent = [row[rank] for row in counts]
            expected = counts[rank][self.size :]
            if sent != expected:
                self._line.fail(
                    f"rank {rank} expects {expected} rows, the others send {sent} in all_to_all"
                )
                self._line.check()

    def _move(
        self,
        data: torch.Tensor,
        send_bytes: Sequence[int],
        output: torch.Tensor,
        receive_bytes: Sequence[int],
    ) -> None:
        self._wait(self._group.alltoall_base(output, data, list(receive_bytes), list(send_bytes)))

    def _collect(self, data: torch.Tensor, output: torch.Tensor) -> None:
        self._wait(self._group._allgather_base(output, data))

    def _spread(self, data: torch.Tensor, root: int) -> None:
        self._wait(self._group.broadcast([data], _broadcast_options(root)))

    def _wait(self, work: Work) -> None:
        """Wait for gloo, but no longer than the group holds and the time lasts."""
        deadline_s = time.monotonic() + self._timeout_s
        while True:
            left = timedelta(seconds=max(deadline_s - time.monotonic(), 0.001))
            try:
                work.wait(min(SLICE, left))
            except RuntimeError:
                if work.is_completed():
                    self._check_made(work)
                    return
            else:
                return
            self._line.check()
            if time.monotonic() >= deadline_s:
                self._line.give_up("it took too long", waited_s=self._timeout_s)

    def _check_made(self, work: Work) -> None:
        """Give up if it failed: it may also have succeeded after a wait for it was over."""
        try:
            work.wait()
        except RuntimeError as error:
            self._line.give_up(str(error).partition("\n")[0])

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


def _broadcast_options(root: int) -> Any:
    from torch._C._distributed_c10d import BroadcastOptions

    options = BroadcastOptions()
    options.rootRank = root
    return options
