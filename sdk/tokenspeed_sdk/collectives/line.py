"""A control line beside the data: finds the rank that died, hangs or calls something else.

    rank 1 --+                     "failed", "left", "stuck", "at" --> rank 0
    rank 2 --+-- rank 0            "broken", "left", "where"       <-- rank 0

Rank 0 hears of all and says what broke the group; every rank hears it within milliseconds, and by a
connection that ends it notices the death of another process. Data never travels here.
Thread: `begin`, `give_up`, `fail`, `leave` are for the rank's one thread; a thread of the
line's own waits for messages. What both touch is guarded by `_lock`, or is a counter that one of
them writes.
"""

from __future__ import annotations

import selectors
import threading
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokenspeed_sdk import EngineError
from tokenspeed_sdk.collectives.links import Link, Message, join

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch._C._distributed_c10d import Store

ANSWER_S = 1.0
"""Longest that a living rank's line takes to say where it is."""
VERDICT_S = 3 * ANSWER_S
COMPARE_S = 0.25
"""How often calls are compared that the data's own way does not compare."""
KEPT_CALLS = 1 << 16


@dataclass(slots=True)
class _Inquiry:
    """Rank 0 asks where everybody is."""

    stuck: Message
    deadline_s: float
    answers: dict[int, Message] = field(default_factory=dict)


class Line:
    """One rank's end of the line.

    Args:
        name: of the group, for messages.
        address: at which the other ranks reach this one.
        on_break: called once, from either thread, when the group breaks; must not wait.
        compares: calls return before the others made them, so the line compares them.
    Raises:
        EngineError: a rank did not come within the time; names it.
    """

    def __init__(
        self,
        store: Store,
        *,
        name: str,
        address: str,
        rank: int,
        size: int,
        timeout_s: float,
        on_break: Callable[[], None] = lambda: None,
        compares: bool = False,
    ) -> None:
        self.reason = ""
        """Why the group is broken; "": it is not."""
        self._name, self._rank, self._size = name, rank, size
        self._timeout_s, self._on_break, self._compares = timeout_s, on_break, compares
        self._lock = threading.RLock()
        self._broke = threading.Event()
        self._left: dict[int, int] = {}
        self._call, self._peer = "nothing", -1
        self._begun = 0
        self._digest, self._digests = 0, [(0, 0, "")] * (KEPT_CALLS if compares else 0)
        self._seen: dict[int, tuple[int, int, str]] = {}
        self._told = 0
        self._inquiry: _Inquiry | None = None
        self._links = join(store, name, address, rank=rank, size=size, timeout_s=timeout_s)
        self._is_closed = False
        self._thread = threading.Thread(target=self._listen, name=f"line-{name}", daemon=True)
        self._thread.start()

    def begin(self, call: str) -> None:
        """Note a call before its data moves.

        Raises:
            EngineError: the group is broken, or a rank has left.
        """
        self._call = call
        self._begun = begun = self._begun + 1
        if self.reason or self._left:  # looked at last: `_note_left` looks at `_begun` last
            self._check_left(call)
            self.check()
        if self._compares:
            self._digest = zlib.crc32(call.encode(), self._digest)
            self._digests[begun % KEPT_CALLS] = (begun, self._digest, call)

    def begin_pairwise(self, call: str, peer: int) -> None:
        """Note an exchange with one other rank; it is no call of the group's.

        Raises:
            EngineError: the group is broken, or that rank has left.
        """
        self._call, self._peer = call, peer
        if peer in self._left:
            self._break(f"rank {peer} has left before rank {self._rank} called {call}")
        self.check()

    def end_pairwise(self) -> None:
        """Note that the exchange is over."""
        self._peer = -1

    def check(self) -> None:
        """Raise if the group is broken.

        Raises:
            EngineError: it is; says why.
        """
        if self.reason:
            raise EngineError(
                f"communicator {self._name!r} of {self._size} ranks is broken: {self.reason}; all "
                "ranks must make the same calls and stay until the last; restart the engine"
            )

    def give_up(self, why: str, *, waited_s: float | None = None) -> None:
        """Break the group because this rank's call does not end; whoever is at fault is looked for.

        Args:
            why: what the transport said, for when no rank is at fault.
            waited_s: how long the call has waited; None: the transport failed before the timeout.
        Raises:
            EngineError: always.
        """
        if waited_s is not None:
            message = {**self._where(), "stuck": waited_s}
            self._tell_first(message)
        if not self._broke.wait(VERDICT_S):
            stopped = waited_s is not None and self._rank != 0
            self._break(
                f"rank 0 did not come to {self._call} within {waited_s:g} s, and does not answer"
                if stopped
                else f"{self._call} failed: {why}"
            )
        self.check()

    def fail(self, reason: str) -> None:
        """Break the group for all ranks."""
        self._tell_first({"failed": reason})
        self._break(reason)

    def leave(self, reason: str) -> None:
        """End this rank's part: in peace, or with a reason."""
        with self._lock:
            if self._is_closed:
                return
            if reason:
                self._tell_first({"failed": f"rank {self._rank} failed: {reason}"})
            else:
                self._tell_first({"left": self._begun})
            self._is_closed = True
            for link in self._links.values():
                link.end()  # the line's thread gives it back once the other end has left too

    # What follows runs in either thread, most of it on rank 0.

    def _tell_first(self, message: Message) -> None:
        """Give rank 0 a message of this rank."""
        if self._rank == 0:
            self._hear(0, message)
        else:
            self._links[0].send(message)

    def _tell_all(self, message: Message, *, but: int = 0) -> None:
        for rank, link in self._links.items():
            if rank != but:
                link.send(message)

    def _listen(self) -> None:
        """Hear the others until everybody is gone."""
        with selectors.DefaultSelector() as selector:
            for rank, link in self._links.items():
                selector.register(link, selectors.EVENT_READ, rank)
                for message in link.early:
                    self._hear(rank, message)
            while selector.get_map():
                for key, _ in selector.select(self._patience_s()):
                    self._receive(selector, key)
                self._pass_time()
        for link in self._links.values():
            link.close()

    def _receive(self, selector: selectors.BaseSelector, key: selectors.SelectorKey) -> None:
        link, rank = key.fileobj, key.data
        assert isinstance(link, Link)
        messages = link.receive()
        if messages is None:
            selector.unregister(link)
            self._lost(rank)
        for message in messages or ():
            self._hear(rank, message)

    def _patience_s(self) -> float | None:
        if self._inquiry is not None:
            return max(self._inquiry.deadline_s - time.monotonic(), 0.001)
        return COMPARE_S if self._compares else None

    def _pass_time(self) -> None:
        with self._lock:
            if self._compares and self._begun != self._told and not self.reason:
                self._told, digest, call = self._digests[self._begun % KEPT_CALLS]
                self._tell_first({"digest": digest, "number": self._told, "call": call})
            inquiry = self._inquiry
            if inquiry is not None and (
                len(inquiry.answers) == self._size or time.monotonic() >= inquiry.deadline_s
            ):
                self._inquiry = None
                self._break(_verdict(inquiry, self._size))

    def _lost(self, rank: int) -> None:
        """A connection ended."""
        with self._lock:
            if rank not in self._left and not self._is_closed and not self.reason:
                self._break(f"rank {rank} died, or its machine is gone: its connection ended")

    def _hear(self, rank: int, message: Message) -> None:
        with self._lock:
            if self._is_closed:
                return
            if "broken" in message:
                self._break(message["broken"])
            elif "failed" in message:
                self._break(message["failed"])
            elif "left" in message:
                self._note_left(message.get("rank", rank), message["left"])
            elif "where" in message:
                self._links[0].send(self._where())
            elif "stuck" in message:
                self._inquire(message)
            elif "at" in message and self._inquiry is not None:  # its answer
                self._inquiry.answers[rank] = message
            elif "digest" in message:
                self._seen[rank] = (message["number"], message["digest"], message["call"])
                self._compare()

    def _note_left(self, rank: int, begun: int) -> None:
        if self._rank == 0:
            self._tell_all({"left": begun, "rank": rank}, but=rank)
        if rank != self._rank:
            self._left[rank] = begun
            if self._begun > begun or self._peer == rank:
                self._break(f"rank {rank} has left while others wait in {self._call}")

    def _check_left(self, call: str) -> None:
        for rank, begun in list(self._left.items()):
            if not self.reason and self._begun > begun:
                self._break(f"rank {rank} has left before rank {self._rank} called {call}")

    def _where(self) -> Message:
        return {"at": self._begun, "call": self._call, "peer": self._peer}

    def _inquire(self, message: Message) -> None:
        if self._inquiry is not None or self.reason:
            return
        deadline_s = time.monotonic() + ANSWER_S
        self._inquiry = _Inquiry(message, deadline_s, {0: self._where()})
        self._tell_all({"where": True})
        if threading.current_thread() is not self._thread:
            self._wake()

    def _wake(self) -> None:
        """Let the line's thread see a deadline that this one set."""
        # Its own pause ends at the first answer; where nobody answers, a second thread counts.
        timer = threading.Timer(ANSWER_S, self._pass_time)
        timer.daemon = True
        timer.start()

    def _compare(self) -> None:
        """Compare the calls that others told with rank 0's own of the same number."""
        for rank, (number, digest, call) in self._seen.items():
            own_number, own_digest, own_call = self._digests[number % KEPT_CALLS]
            if own_number == number and own_digest != digest:
                self._break(
                    f"the ranks' calls do not match at or before call {number} (rank 0: "
                    f"{own_call}, rank {rank}: {call})"
                )

    def _break(self, reason: str) -> None:
        with self._lock:
            if self.reason:
                return
            self.reason = reason
            if self._rank == 0:
                self._tell_all({"broken": reason})
        self._broke.set()
        self._on_break()


def _verdict(inquiry: _Inquiry, size: int) -> str:
    """Say who is at fault when one rank's call did not end."""
    call, number, peer = (inquiry.stuck[key] for key in ("call", "at", "peer"))
    late = f"did not come to {call} within {inquiry.stuck['stuck']:g} s"
    silent = [rank for rank in range(size) if rank not in inquiry.answers]
    if silent:
        return f"rank {_listed(silent)} {late}, and does not answer: it is stopped, or hangs"
    answers = sorted(inquiry.answers.items())
    missing = [rank for rank, answer in answers if answer["at"] < number] if peer < 0 else [peer]
    if missing:
        last = inquiry.answers[missing[0]]["call"]
        return f"rank {_listed(missing)} {late}; the last call there was {last}"
    calls = {rank: answer["call"] for rank, answer in answers if answer["at"] == number}
    if len(set(calls.values())) > 1:
        texts = ", ".join(f"rank {rank}: {text}" for rank, text in calls.items())
        return f"the ranks' calls do not match ({texts})"
    return f"{call} did not end within {inquiry.stuck['stuck']:g} s though every rank is in it"


def _listed(ranks: list[int]) -> str:
    return ", ".join(map(str, ranks))
