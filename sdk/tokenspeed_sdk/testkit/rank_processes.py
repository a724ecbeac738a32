"""Ranks that are real processes: one a rank, kept for many groups and calls.

    with RankProcesses(load, 4) as ranks:
        ranks.join("all")                       # every rank; "pairs" may have fewer
        ranks.call("all", "all_reduce", [((x,), {}) for x in inputs])

A call gives a result or a `Failure` a rank: nothing here raises for what a rank did.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import signal
import time
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.connection import Connection
    from types import TracebackType

    from tokenspeed_sdk import Communicator

Arguments = tuple[tuple[Any, ...], "Mapping[str, Any]"]
ANSWER_S = 120.0


@dataclass(frozen=True, slots=True)
class Failure:
    """What a rank raised, or that it is gone or does not answer."""

    kind: str
    message: str
    seconds: float


class RankProcesses:
    """Processes, each with its communicators by name.

    Args:
        load: called in each process as an offer's `load` is; a module's function, or another thing
            that can be pickled.
        size: ranks.
        device: torch device kind; other than "cpu": each rank has the device of its number.
        timeout_s: of the groups.
    """

    def __init__(
        self,
        load: Callable[..., Communicator],
        size: int,
        *,
        device: str = "cpu",
        timeout_s: float = 20.0,
    ) -> None:
        self.size = size
        self._load, self._timeout_s = load, timeout_s
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["torch", "tokenspeed_sdk.collectives"])
        self._ends: list[Connection] = []
        self._processes = []
        for rank in range(size):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, rank, device), daemon=True)
            process.start()
            there.close()
            self._ends.append(here)
            self._processes.append(process)

    def __enter__(self) -> RankProcesses:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.join(10)

    def join(
        self,
        name: str,
        members: Sequence[int] | None = None,
        *,
        rendezvous: str = "",
        timeout_s: float | None = None,
    ) -> list[Any]:
        """Let ranks join a group; returns None or a Failure a member.

        Args:
            members: in the order of the group's ranks; None: all.
            rendezvous: "": one of this host that nobody else uses.
        """
        members = range(self.size) if members is None else members
        rendezvous = rendezvous or f"{name}-{uuid.uuid4().hex}"
        waited = self._timeout_s if timeout_s is None else timeout_s
        arguments = [
            (name, self._load, rank, len(members), rendezvous, waited)
            for rank in range(len(members))
        ]
        return self.run(join_group, arguments, members)

    def call(
        self,
        name: str,
        method: str,
        arguments: Sequence[Arguments],
        members: Sequence[int] | None = None,
    ) -> list[Any]:
        """Let members call a method of their group's communicator; tensors come back to the CPU."""
        members = range(self.size) if members is None else members
        given = [(name, method, *one) for one in arguments]
        return self.run(call_method, given, members)

    def run(
        self,
        function: Callable[..., Any],
        arguments: Sequence[tuple[Any, ...]],
        members: Sequence[int] | None = None,
        *,
        answer_s: float = ANSWER_S,
    ) -> list[Any]:
        """Run a module's function in processes: function(state, *arguments) each."""
        members = range(self.size) if members is None else members
        started = time.monotonic()
        for member, given in zip(members, arguments, strict=True):
            with contextlib.suppress(OSError):  # it is gone: said when its answer is read
                self._ends[member].send_bytes(pickle.dumps((function, given)))
        return [self._answer(member, started, answer_s) for member in members]

    def start(self, member: int, function: Callable[..., Any], *arguments: Any) -> None:
        """Begin a function in one process; `answer` waits for it."""
        self._ends[member].send_bytes(pickle.dumps((function, arguments)))

    def answer(self, member: int, *, answer_s: float = ANSWER_S) -> Any:
        """Return what the function that was started gave."""
        return self._answer(member, time.monotonic(), answer_s)

    def signal(self, member: int, number: signal.Signals) -> None:
        """Send a process a signal: SIGKILL, SIGSTOP, SIGCONT."""
        process_id = self._processes[member].pid
        assert process_id is not None, "it was started"
        os.kill(process_id, number)

    def _answer(self, member: int, started: float, answer_s: float) -> Any:
        end = self._ends[member]
        try:
            if not end.poll(max(started + answer_s - time.monotonic(), 0)):
                return Failure("Hangs", f"no answer in {answer_s:g} s", answer_s)
            return pickle.loads(end.recv_bytes())
        except (EOFError, OSError):
            return Failure("Died", "its process is gone", time.monotonic() - started)


@dataclass(slots=True)
class RankState:
    """What one process keeps."""

    rank: int
    device: Any
    groups: dict[str, Communicator]


def join_group(
    state: RankState,
    name: str,
    load: Callable[..., Communicator],
    rank: int,
    size: int,
    rendezvous: str,
    timeout_s: float,
) -> None:
    """Join a group under a name."""
    state.groups[name] = load(
        rank=rank, size=size, rendezvous=rendezvous, device=state.device, timeout_s=timeout_s
    )


def call_method(
    state: RankState, name: str, method: str, args: tuple[Any, ...], options: Mapping[str, Any]
) -> Any:
    """Call a method of a group's communicator."""
    args = moved(args, state.device)
    return getattr(state.groups[name], method)(*args, **options)


def moved(item: Any, device: Any) -> Any:
    """Return tensors, alone or in tuples, on a device."""
    import torch

    if isinstance(item, torch.Tensor):
        return item.to(device)
    if isinstance(item, tuple | list):
        return type(item)(moved(part, device) for part in item)
    return item


def _serve(end: Connection, rank: int, device_kind: str) -> None:
    """Run what the parent sends until it is gone."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if device_kind != "cpu":
        device = torch.device(device_kind, rank)
        torch.accelerator.set_device_index(rank)
    state = RankState(rank, device, {})
    while True:
        try:
            function, arguments = pickle.loads(end.recv_bytes())
        except (EOFError, OSError):
            return
        end.send_bytes(pickle.dumps(_outcome(state, function, arguments)))


def _outcome(state: RankState, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    started = time.monotonic()
    try:
        return moved(function(state, *arguments), "cpu")
    except Exception as error:
        return Failure(type(error).__name__, str(error), time.monotonic() - started)
