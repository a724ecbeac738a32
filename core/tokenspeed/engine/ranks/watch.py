"""The thread of rank 0 that starts the workers, hears them and names the one that fails.

    starting --all joining--> joining --all ready--> running --close--> ended
        any of them --a rank dies, fails, hangs--> failed: all workers are ended

The workers die with this thread (see `parent_death.py`), so it lives as long as they do.
"""

from __future__ import annotations

import os
import selectors
import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec

from tokenspeed.engine.ranks.failure import RankFailure
from tokenspeed.engine.ranks.messages import (
    RankBeat,
    RankExperts,
    RankFailed,
    RankHealth,
    RankJoining,
    RankLoaded,
    RankMoves,
    RankReady,
)
from tokenspeed.engine.reports import error_of
from tokenspeed.errors import EngineError
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenspeed.engine.ranks.messages import FromRank
    from tokenspeed.engine.ranks.progress import RankProgress
    from tokenspeed.engine.ranks.workers import Worker
    from tokenspeed.errors import TokenSpeedError

GAVE_UP_EXIT_CODE = 70
"""The engine ended itself to be restarted (EX_SOFTWARE)."""
TICK_S = 0.2
CAUSE_S = 1.0
"""How long a rank whose collective broke is not named: the rank that broke it will be."""
CLOSE_S = 3.0
OUT_OF_STEP_S = 1.5
"""How long rank 0 may take to come out of a step whose group has failed, before it is ended."""
OUT_OF_START_S = 5.0


class RankWatch:
    """Watches the workers. Thread: its own; everything public may be called from any.

    Args:
        bring: starts or accepts the workers, and settles what each is told; called first.
        progress: of rank 0, which others may wait for, too.
        timeout_s: see the setting `rank_timeout_s`.
        start_timeout_s: longest silence of a worker that starts.
        ends_process: end this process when a failure does not get it out of its step.
        tick: called a few times a second while running: this process is not stopped.
    """

    def __init__(
        self,
        bring: Callable[[], Sequence[Worker]],
        progress: RankProgress,
        *,
        timeout_s: float,
        start_timeout_s: float,
        ends_process: bool,
        tick: Callable[[], None],
    ) -> None:
        self.workers: Sequence[Worker] = ()
        self.failure: TokenSpeedError | None = None
        self._bring = bring
        self._progress = progress
        self._timeout_s = timeout_s
        self._start_timeout_s = start_timeout_s
        self._ends_process = ends_process
        self._tick = tick
        self._is_running = False
        self._suspicion: tuple[float, RankFailure] | None = None
        self._behind: dict[int, tuple[tuple[int, int], float]] = {}
        self._grace_s = self._next_tick_s = 0.0
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._heard = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rank-watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def wait_for(self, holds: Callable[[Worker], bool], num_workers: int) -> None:
        """Wait until all workers are so far.

        Raises:
            TokenSpeedError: why one of them will not be.
        """
        with self._changed:
            self._changed.wait_for(
                lambda: (
                    self.failure is not None
                    or (len(self.workers) == num_workers and all(map(holds, self.workers)))
                )
            )
        self.check()

    def begin_running(self) -> None:
        """From now on hanging counts: everything is built."""
        now_s = time.monotonic()
        for worker in self.workers:
            worker.heard_s = now_s
        self._is_running = True

    def check(self) -> None:
        """Raise the failure, if there is one."""
        if self.failure is not None:
            self._heard.set()
            raise self.failure

    def cause_of(self, error: BaseException, *, in_collective: bool) -> TokenSpeedError:
        """Return why rank 0 could not go on: another rank's failure, or its own error."""
        if isinstance(error, RankFailure):
            return error
        with self._changed:
            if in_collective:
                self._changed.wait_for(lambda: self.failure is not None, 2 * CAUSE_S)
            if self.failure is None:
                self._fail(RankFailure(f"rank 0 (pid {os.getpid()}) failed in a step: {error!r}"))
        self._heard.set()
        assert self.failure is not None
        return self.failure

    def failure_within(self, wait_s: float) -> TokenSpeedError | None:
        """Return the failure, or None if there is none within so long."""
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None, wait_s)
        self._heard.set()
        return self.failure

    def check_open(self) -> None:
        """Raise if nobody waits for the workers any more."""
        if self._closing.is_set():
            raise EngineError("the engine ends while it waits for its ranks; start it again")

    def close(self, *, in_peace: bool) -> None:
        """End the workers and the thread.

        Args:
            in_peace: the workers were told to end, and are given time to.
        """
        self._grace_s = CLOSE_S if in_peace else 0.0
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        try:
            workers = self._bring()
            with self._changed:
                for worker in workers:  # some may have waited long for the others
                    worker.heard_s = time.monotonic()
                self.workers = workers
                self._changed.notify_all()
            self._watch()
        except Exception as error:
            if not isinstance(error, EngineError):
                LOGGER.exception("the watch over the ranks failed")
            own = (
                error
                if isinstance(error, EngineError)
                else EngineError(
                    f"the watch over the ranks failed: {error!r}; its log has the traceback"
                )
            )
            with self._changed:
                self._fail(own)
        self._end_workers()
        if self.failure is not None and self._ends_process:
            self._end_process()

    def _watch(self) -> None:
        with selectors.DefaultSelector() as selector:
            for worker in self.workers:
                selector.register(worker.sock, selectors.EVENT_READ, worker)
            while self.failure is None and not self._closing.is_set():
                for key, _ in selector.select(TICK_S):
                    self._hear(key.data)
                    if key.data.reader.is_over:
                        selector.unregister(key.fileobj)
                with self._changed:
                    self._look(time.monotonic())
                    self._changed.notify_all()
                self._tell(time.monotonic())

    def _tell(self, now_s: float) -> None:
        if self._is_running and now_s >= self._next_tick_s:
            self._next_tick_s = now_s + 2 * TICK_S
            self._tick()

    def _hear(self, worker: Worker) -> None:
        messages = worker.reader.take()
        worker.heard_s = time.monotonic()
        with self._changed:
            for message in messages:
                self._take(worker, message)
            if worker.reader.is_over and not worker.has_failed:
                self._fail(RankFailure(f"{worker.name} died: {worker.end_text()}"))

    def _take(self, worker: Worker, message: FromRank) -> None:
        if isinstance(message, RankBeat):
            worker.steps, worker.calls = message.steps, message.calls
        elif isinstance(message, RankHealth):
            worker.well = message.steps
        elif isinstance(message, RankExperts):
            worker.experts = message.load
        elif isinstance(message, RankMoves):
            worker.moves.put(message)
        elif isinstance(message, RankFailed):
            self._take_failure(worker, message)
        elif isinstance(message, RankLoaded):
            worker.loaded = message
        elif isinstance(message, RankReady):
            worker.ready = message
        elif isinstance(message, RankJoining):
            assert worker.hello is not None
            worker.hello = msgspec.structs.replace(worker.hello, pid=message.pid)
            worker.is_joining = True

    def _take_failure(self, worker: Worker, message: RankFailed) -> None:
        worker.has_failed = True
        text = f"{worker.name}: {message.failure.message}"
        if not self._is_running and not message.in_collective:
            self._fail(error_of(msgspec.structs.replace(message.failure, message=text)))
        elif not message.in_collective:
            self._fail(RankFailure(text))
        elif self._suspicion is None:
            self._suspicion = (time.monotonic() + CAUSE_S, RankFailure(text))

    def _look(self, now_s: float) -> None:
        """Name a rank that says nothing, or that others wait for and that does not go on."""
        if self._suspicion is not None and now_s > self._suspicion[0]:
            self._fail(self._suspicion[1])
        if self._closing.is_set():
            return
        longest_s = self._timeout_s if self._is_running else self._start_timeout_s
        for worker in self.workers:
            silent_s = now_s - worker.heard_s
            if silent_s > longest_s and not worker.has_failed:
                self._fail(
                    RankFailure(f"{worker.name} hangs: it says nothing for {silent_s:.1f} s")
                )
        if not self._is_running:
            return
        places = {0: (self._progress.steps, self._progress.calls)}
        places |= {worker.rank: (worker.steps, worker.calls) for worker in self.workers}
        first = max(places.values())
        for rank, place in places.items():
            since, since_s = self._behind.get(rank, (place, now_s))
            if place == first or place != since:
                since_s = now_s
            self._behind[rank] = (place, since_s)
            if now_s - since_s > self._timeout_s:
                self._fail(RankFailure(self._hang_text(rank, place, first, now_s - since_s)))

    def _hang_text(
        self, rank: int, place: tuple[int, int], first: tuple[int, int], stands_s: float
    ) -> str:
        names = {worker.rank: worker.name for worker in self.workers}
        where = "inside of" if place[1] % 2 else "before"
        return (
            f"{names.get(rank, f'rank 0 (pid {os.getpid()})')} hangs: it stands {where} collective "
            f"{place[1] // 2} of step {place[0]} for {stands_s:.1f} s, others wait at collective "
            f"{first[1] // 2} of step {first[0]}"
        )

    def _fail(self, error: TokenSpeedError) -> None:
        """Note the first failure. REQUIRES: the condition is held."""
        if self.failure is None and not self._closing.is_set():
            self.failure = error
            LOGGER.error("%s", error)
            self._changed.notify_all()

    def _end_workers(self) -> None:
        """Wait for those that were told to end; end the others."""
        deadline_s = time.monotonic() + (0 if self.failure is not None else self._grace_s)
        for worker in self.workers:
            if worker.process is not None:
                while worker.process.poll() is None and time.monotonic() < deadline_s:
                    time.sleep(0.01)
            worker.kill()
        for worker in self.workers:
            worker.close()

    def _end_process(self) -> None:
        """Give the engine's thread time to come out by itself, then end the process."""
        longest_s = OUT_OF_STEP_S if self._is_running else OUT_OF_START_S
        if self._heard.wait(longest_s) and self._closing.wait(OUT_OF_START_S):
            return
        sys.stderr.flush()
        os._exit(GAVE_UP_EXIT_CODE if self._is_running else 1)
