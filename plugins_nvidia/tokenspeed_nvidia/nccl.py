"""Communicator between processes on NVIDIA GPUs, over NCCL by way of torch.distributed.

Calls are put into the caller's stream and return before they are done: a thread watches whether
they end in time, and aborts them when the group breaks. `check` says, after the stream was
synchronised, whether all that was computed so far is right.

Numbers: two ranks, float32 and maxima are reduced by NCCL. Sums of bfloat16 and float16 over more
ranks are moved by it and taken here in float32: NCCL would round at every hop.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch

from tokenspeed_nvidia.probe import DRIVER_LIBRARY
from tokenspeed_sdk import EngineError
from tokenspeed_sdk.collectives import MovingCommunicator, never_destroyed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch._C._distributed_c10d import Store

WATCH_S = 0.25
PAUSE_S = 20e-6
"""Between two looks of a barrier whether the device is done."""
NUM_EVENTS = 64
CLOSE_S = 5.0
"""Longest that leaving waits for NCCL, which may wait for the others."""
NEVER = timedelta(days=1)
"""NCCL's own timeout: it would end the process, where this group names a rank and goes on."""
_RELAXED = 2  # CU_STREAM_CAPTURE_MODE_RELAXED
_QUIET = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
    "TORCH_NCCL_ENABLE_MONITORING": "0",
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_BLOCKING_WAIT": "0",
}
"""What torch reads when a group is made: otherwise its watchdog ends the process."""


class NcclCommunicator(MovingCommunicator):
    """One rank's end; satisfies tokenspeed_sdk.Communicator.

    Raises:
        ValueError: the device is no GPU with an index.
    """

    features: frozenset[str] = frozenset({"send_receive", "graph_safe", "late_errors"})

    def __init__(
        self, *, rank: int, size: int, rendezvous: str, device: torch.device, timeout_s: float
    ) -> None:
        if device.type != "cuda" or device.index is None:
            raise ValueError(
                f"device is {device}; a GPU with an index is needed, such as cuda:{rank}: each "
                "rank of a host has one of its own"
            )
        self._group: Any = None
        self._last: tuple[int, Any] = (0, None)
        self._events: list[Any] = []
        self._done_watching = threading.Event()
        super().__init__(
            rank=rank,
            size=size,
            rendezvous=rendezvous,
            device=device,
            timeout_s=timeout_s,
            compares=True,
        )

    def check(self) -> None:
        """Raise if the group broke: what its calls gave since the last check is worth nothing.

        Raises:
            EngineError: it did; names the rank and the reason.
        """
        if self.size > 1:
            self._line.check()

    def send(self, x: torch.Tensor, *, to: int) -> None:
        """Give a tensor to a rank, which calls `receive`."""
        call = self._call(f"{self.rank} sends to {to}", x.shape, x.dtype)
        self._check_peer(call, to)
        self._line.begin_pairwise(call, to)
        if x.numel():
            self._put(lambda group: group.send([x.contiguous()], to, 0))

    def receive(self, x: torch.Tensor, *, source: int) -> torch.Tensor:
        """Fill a tensor with what a rank sends."""
        call = self._call(f"{source} sends to {self.rank}", x.shape, x.dtype)
        self._check_peer(call, source)
        self._line.begin_pairwise(call, source)
        whole = x.contiguous()
        if x.numel():
            self._put(lambda group: group.recv([whole], source, 0))
        return x if whole is x else x.copy_(whole)

    def _connect(self, store: Store, address: str) -> None:
        from torch._C._distributed_c10d import PrefixStore, ProcessGroupNCCL

        options: Any = ProcessGroupNCCL.Options()
        options._timeout = NEVER
        options.group_name = self._rendezvous
        torch.cuda.set_device(self._device)
        self._events = [torch.cuda.Event() for _ in range(NUM_EVENTS)]  # type: ignore[no-untyped-call]
        with _environment(_QUIET):
            self._group = ProcessGroupNCCL(
                PrefixStore("data", store), self.rank, self.size, options
            )
        threading.Thread(target=self._watch, name="nccl-watch", daemon=True).start()

    def _warm_up(self) -> None:
        """Let NCCL connect, in a thread: where a rank is missing it never returns."""
        thread = threading.Thread(target=self._use_once, name="nccl-connect", daemon=True)
        thread.start()
        deadline_s = time.monotonic() + self._timeout_s
        while thread.is_alive():
            thread.join(WATCH_S)
            self._line.check()
            if thread.is_alive() and time.monotonic() >= deadline_s:
                self._line.give_up("NCCL does not connect", waited_s=self._timeout_s)

    def _use_once(self) -> None:
        try:
            torch.cuda.set_device(self._device)
            self._spread(torch.zeros(16, dtype=torch.uint8, device=self._device), 0)
            torch.cuda.synchronize(self._device)
        except (EngineError, RuntimeError) as error:
            self._line.fail(f"rank {self.rank}: NCCL does not connect: {error}")

    def _all_reduce(self, call: str, x: torch.Tensor, reduction: str) -> torch.Tensor:
        if self.size > 2 and reduction == "sum" and x.dtype in (torch.bfloat16, torch.float16):
            return super()._all_reduce(call, x, reduction)
        from torch._C._distributed_c10d import AllreduceOptions, ReduceOp

        self._line.begin(call)
        own = x.contiguous()
        if own.numel():
            options = AllreduceOptions()
            options.reduceOp = ReduceOp(ReduceOp.SUM if reduction == "sum" else ReduceOp.MAX)
            options.asyncOp = False
            self._put(lambda group: group.allreduce([own], options))
        return own

    def _meet(
        self, call: str, data: torch.Tensor, *, largest: int = -1
    ) -> list[torch.Tensor] | None:
        self._line.begin(call)
        return None

    def _move(
        self,
        data: torch.Tensor,
        send_bytes: Sequence[int],
        output: torch.Tensor,
        receive_bytes: Sequence[int],
    ) -> None:
        from torch._C._distributed_c10d import AllToAllOptions

        options = AllToAllOptions()
        options.asyncOp = False
        sizes = list(receive_bytes), list(send_bytes)
        self._put(lambda group: group.alltoall_base(output, data, *sizes, options))

    def _collect(self, data: torch.Tensor, output: torch.Tensor) -> None:
        from torch._C._distributed_c10d import AllgatherOptions

        if data.numel():
            options = AllgatherOptions()
            options.asyncOp = False
            self._put(lambda group: group._allgather_base(output.view(-1), data.view(-1), options))

    def _spread(self, data: torch.Tensor, root: int) -> None:
        from torch._C._distributed_c10d import BroadcastOptions

        if data.numel():
            options = BroadcastOptions()
            options.rootRank, options.asyncOp = root, False
            self._put(lambda group: group.broadcast([data], options))

    def _barrier(self, call: str) -> None:
        one = torch.zeros(1, device=self._device)
        self._all_reduce(call, one, "max")
        done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
        while not done.query():
            self._line.check()
            time.sleep(PAUSE_S)
        self._line.check()

    def _put(self, enqueue: Callable[[Any], Any]) -> None:
        """Put a call into the stream, and mark it there; what is captured runs later, unwatched.

        Raises:
            EngineError: the group broke, before or meanwhile: another thread aborts it then.
        """
        group = self._group
        if group is None:
            self._line.check()
        try:
            enqueue(group)
        except RuntimeError:
            self._line.check()
            raise
        number, event = self._last[0] + 1, None
        if not torch.cuda.is_current_stream_capturing():
            # NCCL's own work counts as done at once where it runs in the caller's stream.
            event = self._events[number % len(self._events)]
            event.record()
        self._last = (number, event)

    def _watch(self) -> None:
        """Break the group when the device does not come further for the group's timeout."""
        torch.cuda.set_device(self._device)
        _allow_queries_during_captures()
        number, done, since_s = 0, 0, time.monotonic()
        while not self._done_watching.wait(WATCH_S):
            newest, work = self._last
            # What is done is not asked again: a capture may have begun since.
            if work is None or newest == done:
                number, since_s = newest, time.monotonic()
            elif self._is_done(work):
                number, done, since_s = newest, newest, time.monotonic()
            elif newest != number:
                number, since_s = newest, time.monotonic()
            elif time.monotonic() - since_s >= self._timeout_s:
                with contextlib.suppress(EngineError):
                    self._line.give_up("the device is not done", waited_s=self._timeout_s)

    def _is_done(self, work: Any) -> bool:
        try:
            return bool(work.query())
        except RuntimeError as error:
            self._line.fail(f"rank {self.rank}: {str(error).partition(chr(10))[0]}")
            return True

    def _broken(self) -> None:
        self._done_watching.set()
        group, self._group, self._last = self._group, None, (0, None)
        if group is not None:
            never_destroyed(group)
            threading.Thread(target=group.abort, name="nccl-abort", daemon=True).start()

    def _leave(self, reason: str) -> None:
        if reason and self.size > 1:
            self._broken()  # nothing is waited for
        super()._leave(reason)

    def _disconnect(self) -> None:
        group, self._group = self._group, None
        if group is not None and not self._line.reason:
            torch.cuda.synchronize(self._device)  # watched: it ends
            never_destroyed(group)  # its destructor may wait for the others
            thread = threading.Thread(target=group.shutdown, name="nccl-close", daemon=True)
            thread.start()
            thread.join(CLOSE_S)
        self._done_watching.set()


def _allow_queries_during_captures() -> None:
    """Let this thread ask for events while another one captures a graph, without breaking that."""
    mode = ctypes.c_int(_RELAXED)
    ctypes.CDLL(DRIVER_LIBRARY).cuThreadExchangeStreamCaptureMode(ctypes.byref(mode))


class OrderedNcclCommunicator(NcclCommunicator):
    """Sums in the order of the ranks whatever the size: a sum's bits depend on nothing else."""

    def _all_reduce(self, call: str, x: torch.Tensor, reduction: str) -> torch.Tensor:
        if reduction == "max":
            return super()._all_reduce(call, x, reduction)
        return MovingCommunicator._all_reduce(self, call, x, reduction)


@contextlib.contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Set variables for as long as torch reads them."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
