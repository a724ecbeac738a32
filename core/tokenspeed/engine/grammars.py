"""Languages of requests: compiled in threads, shared, and kept while their bytes fit.

A request waits here for its grammar, before the scheduler knows of it. Whatever an engine raises
refuses the requests that ask for that grammar, and no others.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TYPE_CHECKING

import msgspec

from tokenspeed.contracts.grammar import GrammarSpec
from tokenspeed.errors import CapacityError, EngineError, RequestError, TokenSpeedError

if TYPE_CHECKING:
    from tokenspeed.contracts.grammar import CompiledGrammar, GrammarEngine

COMPILE_THREADS = 2
COMPILE_S = 30.0
"""Longest that a request waits for its grammar."""
CACHE_BYTES = 256 << 20
"""Of grammars that no request may be using any more."""
MAX_STUCK = 4
"""Compilations that were given up and cannot be stopped; beyond so many none begins."""
LONG_SHARE = 0.9
"""Of the time that a request waits: a compilation that took it is not waited for."""
ENTRY_BYTES = 500
"""What a cached grammar costs beside its text and what its engine says."""
RETRY_S = 5
FIELD = GrammarSpec("json_object").field

_Job = tuple[GrammarSpec, "Future[_Compiled]"]


@dataclass(frozen=True, slots=True)
class _Compiled:
    grammar: CompiledGrammar
    num_bytes: int


@dataclass(frozen=True, slots=True)
class PendingGrammar:
    """A grammar that a request waits for."""

    spec: GrammarSpec
    field: str
    future: Future[_Compiled]
    give_up_s: float

    def is_settled(self, now_s: float) -> bool:
        """Say whether it is ready, has failed or takes too long."""
        return self.future.done() or now_s >= self.give_up_s


class Grammars:
    """The grammars of one engine. Thread: the engine's only; compiling has its own.

    Args:
        name: PLUGIN/NAME of the engine, for messages.
        cache_bytes: kept at most, beside the one used last.
        timeout_s: longest that a request waits.
    """

    def __init__(
        self,
        engine: GrammarEngine,
        name: str,
        *,
        cache_bytes: int = CACHE_BYTES,
        timeout_s: float = COMPILE_S,
    ) -> None:
        self.name = name
        self.num_compiled = 0
        self.cached_bytes = 0
        self._engine = engine
        self._cache_bytes = cache_bytes
        self._timeout_s = timeout_s
        self._ready: OrderedDict[GrammarSpec, _Compiled] = OrderedDict()
        self._under_way: dict[GrammarSpec, tuple[Future[_Compiled], int]] = {}
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._num_threads = 0
        self._lock = threading.Lock()
        self._stuck: set[GrammarSpec] = set()
        self._began_s: dict[GrammarSpec, float] = {}

    @property
    def num_stuck(self) -> int:
        """How many compilations go on that were given up."""
        with self._lock:
            return len(self._stuck)

    def ask(self, spec: GrammarSpec) -> PendingGrammar:
        """Start to compile a grammar, unless it is there or under way."""
        field, spec = spec.field, msgspec.structs.replace(spec, after=(), field=FIELD)
        future: Future[_Compiled] = Future()
        give_up_s = time.monotonic() + self._timeout_s
        if spec in self._ready:
            future.set_result(self._ready[spec])
            return PendingGrammar(spec, field, future, give_up_s)
        refusal = self._refusal(spec, field)
        if refusal is not None:
            future.set_exception(refusal)
            return PendingGrammar(spec, field, future, give_up_s)
        future, num_waiting = self._under_way.get(spec, (future, 0))
        self._under_way[spec] = future, num_waiting + 1
        if num_waiting == 0:
            self._start(spec, future)
        return PendingGrammar(spec, field, future, give_up_s)

    def take(self, pending: PendingGrammar) -> CompiledGrammar:
        """Return a settled grammar.

        Raises:
            RequestError: it is malformed, impossible, or takes too long to compile.
            CapacityError: others kept its turn from coming.
            EngineError: the grammar engine failed.
        """
        self.drop(pending)
        future = pending.future
        if future.cancelled() or not future.done():
            problem = self._too_long(pending)
            self._leave_stuck()
            raise problem
        error = future.exception()
        if isinstance(error, RequestError):
            raise _of_field(error, pending.field)
        if isinstance(error, TokenSpeedError):
            raise error
        if error is not None:
            raise EngineError(
                f"the grammar engine {self.name} failed for this request with {error!r}; other "
                "requests go on; change the grammar, or see the engine's log"
            ) from error
        compiled = future.result()
        self._keep(pending.spec, compiled)
        return compiled.grammar

    def drop(self, pending: PendingGrammar) -> None:
        """Wait for a grammar no more; nobody's that was not begun is not compiled."""
        future, num_waiting = self._under_way.pop(pending.spec, (pending.future, 0))
        if future is not pending.future:
            self._under_way[pending.spec] = future, num_waiting
        elif num_waiting > 1:
            self._under_way[pending.spec] = future, num_waiting - 1
        elif not future.done():
            future.cancel()

    def close(self) -> None:
        """End the threads, and with them what they keep; what was not begun is not compiled."""
        for future, _ in self._under_way.values():
            future.cancel()
        self._under_way.clear()
        for _ in range(self._num_threads):
            self._jobs.put(None)
        self._num_threads = 0

    def _refusal(self, spec: GrammarSpec, field: str) -> Exception | None:
        """Return why a compilation cannot begin; None: it can."""
        self._leave_stuck()
        with self._lock:
            if spec in self._stuck:
                return self._never_ready("it", field)
            if len(self._stuck) < MAX_STUCK:
                return None
        return CapacityError(
            f"{field} cannot be compiled: {MAX_STUCK} others, given up after {self._timeout_s:g} s "
            f"each, still take all threads there are; send it again in {RETRY_S} s, or without it",
            retry_after_s=RETRY_S,
        )

    def _leave_stuck(self) -> None:
        """Leave threads to compilations that do not end: others get new ones."""
        now_s = time.monotonic()
        for spec, began_s in list(self._began_s.items()):
            with self._lock:
                is_stuck = self._is_long(began_s, now_s) and spec in self._began_s
                if not is_stuck or spec in self._stuck:
                    continue
                self._stuck.add(spec)
            self._num_threads -= 1
            if not self._jobs.empty():
                self._add_thread()

    def _is_long(self, began_s: float, now_s: float) -> bool:
        return now_s - began_s >= LONG_SHARE * self._timeout_s

    def _start(self, spec: GrammarSpec, future: Future[_Compiled]) -> None:
        if self._num_threads < COMPILE_THREADS:
            self._add_thread()
        self._jobs.put((spec, future))

    def _add_thread(self) -> None:
        self._num_threads += 1
        # A daemon: the end of the process does not wait for a grammar.
        threading.Thread(target=self._work, name="grammar", daemon=True).start()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            spec, future = job
            if not future.set_running_or_notify_cancel():
                continue
            self._began_s[spec] = time.monotonic()
            try:
                grammar = self._engine.compile(spec)
                num_bytes = max(0, int(grammar.num_bytes)) + len(spec.text) + ENTRY_BYTES
                future.set_result(_Compiled(grammar, num_bytes))
            except BaseException as error:
                future.set_exception(error)
            with self._lock:
                self._began_s.pop(spec, None)
                if spec in self._stuck:
                    self._stuck.remove(spec)
                    return  # another thread has its place

    def _keep(self, spec: GrammarSpec, compiled: _Compiled) -> None:
        if spec not in self._ready:
            self.num_compiled += 1
            self.cached_bytes += compiled.num_bytes
            self._ready[spec] = compiled
        self._ready.move_to_end(spec)
        while self.cached_bytes > self._cache_bytes and len(self._ready) > 1:
            _, oldest = self._ready.popitem(last=False)
            self.cached_bytes -= oldest.num_bytes

    def _too_long(self, pending: PendingGrammar) -> Exception:
        began_s = self._began_s.get(pending.spec)
        if began_s is not None and self._is_long(began_s, time.monotonic()):
            return self._never_ready(pending.field, pending.field)
        return CapacityError(
            f"{pending.field} was not compiled in {self._timeout_s:g} s, others came before it; "
            f"send the request again in {RETRY_S} s",
            retry_after_s=RETRY_S,
        )

    def _never_ready(self, what: str, field: str) -> RequestError:
        return RequestError(
            f"{what} was not ready after {self._timeout_s:g} s of compiling; make it simpler, "
            "with fewer alternatives and smaller repetition counts",
            param=field,
        )


def _of_field(error: RequestError, field: str) -> RequestError:
    """Return an engine's refusal as one of the field that the client has sent."""
    param = error.param or FIELD
    inside = param[len(FIELD) :] if param.startswith(FIELD) else ""
    return RequestError(f"{field}: {error}", param=field + inside, code=error.code)
