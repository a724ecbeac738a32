"""The chosen KV store, as the engine calls it: one that keeps failing is detached, serving goes on.

    attached --- N failures in a row ---> leaving --- its close() is done ---> detached

A failure is an exception or an answer that no store may give. Nothing that was asked of a leaving
store is answered before its close() has returned: until then it may still write into the buffers it
was lent, and a block that is handed out again must not change under its next owner.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from tokenspeed.contracts.kv_store import KEY_BYTES, StoreDone
from tokenspeed.errors import EngineError
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenspeed.contracts.kv_store import KVStore, StoreFacts

    Result = TypeVar("Result")

MAX_FAILURES = 3
LEAVE_S = 30.0
"""Longest wait for the close() of a store that failed; then the engine restarts instead."""


class GuardedStore:
    """A KVStore around another. Thread: the engine's only; close() of a failing one has its own.

    Args:
        name: PLUGIN/NAME, for the log.
        max_failures: in a row, after which the store is detached.
    """

    def __init__(self, store: KVStore, name: str, *, max_failures: int = MAX_FAILURES) -> None:
        self.facts: StoreFacts = store.facts
        self.name = name
        self.num_failures = 0
        self.detached_s: float | None = None
        self._store = store
        self._max_failures = max_failures
        self._failures_in_a_row = 0
        self._lent: dict[int, int] = {}  # ticket of the store -> ours
        self._refused: list[int] = []  # of ours: answered at the next poll
        self._next_ticket = 0
        self._last_problem = ""
        self._leaving: threading.Thread | None = None
        self._leaves_until_s = 0.0

    @property
    def is_detached(self) -> bool:
        """Whether the store is no longer asked."""
        return self.detached_s is not None

    def put(self, key: bytes, tag: bytes, data: memoryview) -> int:
        """Start to keep a record; a detached store keeps none."""
        return self._ask(lambda: self._store.put(key, tag, data), "put")

    def get(self, key: bytes, tag: bytes, into: memoryview) -> int:
        """Start to read a record; a detached store has none."""
        return self._ask(lambda: self._store.get(key, tag, into), "get")

    def poll(self) -> Sequence[StoreDone]:
        """Return what ended.

        Raises:
            EngineError: a detached store does not give back the buffers it was lent.
        """
        done = [] if self.is_detached else self._polled()
        if self.is_detached and self._has_left():
            self._refused += self._lent.values()
            self._lent.clear()
        done += [StoreDone(ticket, ok=False) for ticket in self._refused]
        self._refused.clear()
        return done

    def keys(self) -> Sequence[bytes]:
        """Return the keys of all records."""
        return self._listed(self._store.keys, "keys")

    def take_lost(self) -> Sequence[bytes]:
        """Return keys that are no longer there; each of a detached store is found out by a get."""
        return self._listed(self._store.take_lost, "take_lost")

    def alerts(self) -> list[dict[str, Any]]:
        """Return what an administrator should act on: the store was detached."""
        if self.detached_s is None:
            return []
        return [
            {
                "name": "store_detached",
                "since_s": round(time.monotonic() - self.detached_s, 1),
                "message": f"KV store {self.name} failed {self.num_failures} times, at last: "
                f"{self._last_problem}; it is detached until the next start and evicted blocks are "
                "computed again; restart the server when the store is well",
            }
        ]

    def close(self) -> None:
        """Close the store, or wait for the closing that is under way."""
        if self._leaving is None:
            self._leave()
        else:
            self._leaving.join(max(0.0, self._leaves_until_s - time.monotonic()))

    def _ask(self, call: Callable[[], int], what: str) -> int:
        self._next_ticket += 1
        answer = None if self.is_detached else self._guarded(call, what)
        if answer is None:
            self._refused.append(self._next_ticket)
        elif type(answer) is not int or answer in self._lent:
            self._fail(f"{what} returned ticket {answer!r}, which is no new one")
            self._refused.append(self._next_ticket)
        else:
            self._lent[answer] = self._next_ticket
        return self._next_ticket

    def _polled(self) -> list[StoreDone]:
        done = []
        for item in self._guarded(self._store.poll, "poll") or ():
            ticket = self._lent.pop(getattr(item, "ticket", -1), None)
            if ticket is None:
                self._fail(f"poll returned {repr(item)[:80]}, which was not asked for")
                continue
            done.append(StoreDone(ticket, ok=bool(item.ok)))
            if item.ok:
                self._failures_in_a_row = 0
        return done

    def _listed(self, call: Callable[[], Sequence[bytes]], what: str) -> Sequence[bytes]:
        keys = () if self.is_detached else self._guarded(call, what) or ()
        wrong = [key for key in keys if not isinstance(key, bytes) or len(key) != KEY_BYTES]
        if wrong:
            self._fail(f"{what} returned {repr(wrong[0])[:80]}, keys have {KEY_BYTES} bytes")
            return ()
        return keys

    def _guarded(self, call: Callable[[], Result], what: str) -> Result | None:
        try:
            return call()
        except (Exception, SystemExit) as error:
            self._fail(f"{what} raised {type(error).__name__}: {error}")
            return None

    def _fail(self, problem: str) -> None:
        self.num_failures += 1
        self._failures_in_a_row += 1
        if self.is_detached:
            return
        LOGGER.warning("KV store %s: %s", self.name, problem)
        if self._failures_in_a_row >= self._max_failures:
            self._detach(problem)

    def _detach(self, problem: str) -> None:
        LOGGER.error(
            "KV store %s is detached after %d failures in a row, the last: %s; evicted blocks are "
            "computed again, answers stay right; restart the server when it is well [%s]",
            self.name, self._failures_in_a_row, problem, "store-detached",
        )  # fmt: skip
        self.detached_s = time.monotonic()
        self._leaves_until_s = self.detached_s + LEAVE_S
        self._last_problem = problem
        self._leaving = threading.Thread(target=self._leave, name="store-leaves", daemon=True)
        self._leaving.start()

    def _leave(self) -> None:
        try:
            self._store.close()
        except (Exception, SystemExit) as error:
            LOGGER.warning("KV store %s: close raised %r", self.name, error)

    def _has_left(self) -> bool:
        assert self._leaving is not None
        if not self._leaving.is_alive():
            return True
        if self._lent and time.monotonic() > self._leaves_until_s:
            raise EngineError(
                f"KV store {self.name} was detached and holds {len(self._lent)} buffers after "
                f"{LEAVE_S:g} s; the engine restarts, so that nothing is written into blocks of "
                "others; leave the store out (--kv-store '')"
            )
        return False
