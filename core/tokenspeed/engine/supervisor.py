"""Keeps one engine process alive: spawn, watch, restart; used by the launcher and by tests.

An engine that dies or hangs is started again on the same address, which its API processes notice by
themselves. The third restart within five minutes is the last: after it the address answers
"unhealthy". Loads no torch.
"""

from __future__ import annotations

import contextlib
import logging
import os
import select
import subprocess
import sys
import threading
import time
from enum import Enum
from typing import TYPE_CHECKING

import msgspec

from tokenspeed import errors
from tokenspeed.config.ranges import check_settings
from tokenspeed.config.schema import EngineConfig, settings_of
from tokenspeed.engine.endings import ending_of
from tokenspeed.engine.flight_record import read_doing, record_of
from tokenspeed.engine.ranks.place import world_of
from tokenspeed.engine.reports import (
    Alive,
    EngineReport,
    Progress,
    StartFailure,
    StartReport,
    check_same_plan,
    error_of,
    failure_of,
)
from tokenspeed.engine.start_settings import EngineSettings, plugins_of
from tokenspeed.engine.unhealthy import UnhealthyResponder
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tokenspeed.engine.ranks.source import RankSource
    from tokenspeed.plugins import PluginPlan

MAX_RESTARTS = 3
RESTART_WINDOW_S = 300.0
HANG_TIMEOUT_S = 300.0
STOP_TIMEOUT_S = 5.0
_POLL_S = 0.5
_WAIT_S = 0.5
_OWN_STOP_S = 2.0
"""A whole process group may be told to stop: the launcher's own stop then follows the engine's."""

BEFORE_PLUGINS = ("libraries", "plugins")
"""Stages of a start until every plugin is loaded."""
PLAN_DIFFERS = "plan-differs"

_DIED_TOO_OFTEN = (
    f"the engine was restarted {MAX_RESTARTS} times in {RESTART_WINDOW_S:.0f} s and died "
    "again; it is not restarted. See its log for the reason, then restart the server"
)


class EngineState(Enum):
    """Where the supervised engine stands."""

    STARTING = "starting"
    READY = "ready"
    RESTARTING = "restarting"
    UNHEALTHY = "unhealthy"
    STOPPED = "stopped"


class EngineSupervisor:
    """Owns the engine process. Thread: any; one watching thread of its own.

    Args:
        config: settings; of a ServeConfig only the engine's part is passed on.
        address: ZeroMQ address, such as `ipc:///run/.../engine.sock`.
        folder: an existing folder of this server alone; the flight record lies there.
        plugins: the plan that every engine must see as it is; None: planned here.
        on_progress: called from the watching thread while the engine starts.
        hang_timeout_s: an engine whose step, or turn of its loop, takes longer is killed.
        device_index: which of the accelerators of this host is the engine's.
        ranks: where further ranks connect; None: the engine starts them itself.
    """

    def __init__(
        self,
        config: EngineConfig,
        *,
        address: str,
        folder: Path,
        plugins: PluginPlan | None = None,
        on_progress: Callable[[Progress], None] | None = None,
        hang_timeout_s: float = HANG_TIMEOUT_S,
        log_level: str = "info",
        ranks: RankSource | None = None,
        device_index: int = 0,
    ) -> None:
        self.address = address
        self.state = EngineState.STARTING
        self.epoch = 0
        self.report: StartReport | None = None
        self._settings = _engine_settings(
            config, plugins or plugins_of(config), ranks, device_index
        )
        self._num_ranks, self._rank_timeout_s = world_of(config), config.rank_timeout_s
        self._start_timeout_s = config.start_timeout_s
        self._alive_s = 0.0
        self._passed_fds = () if ranks is None else (ranks.listener_fd,)
        self.has_plugins = False
        self._is_starting = False
        self._record = record_of(folder)
        self._on_progress = on_progress or (lambda progress: None)
        self._hang_timeout_s = hang_timeout_s
        self._log_level = log_level
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: StartFailure | None = None
        self._restarts_s: list[float] = []
        self._settled = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()  # orders stop() against the spawning of a new process
        self._thread = threading.Thread(target=self._watch, name="engine-supervisor", daemon=True)

    @property
    def pid(self) -> int | None:
        """Process id of the current engine, None before the first start."""
        return self._process.pid if self._process is not None else None

    @property
    def num_restarts(self) -> int:
        """How often the engine was started again."""
        return max(0, self.epoch - 1)

    def start(self, *, meanwhile: Callable[[], None] = lambda: None) -> StartReport:
        """Start the engine and wait until it is ready.

        Args:
            meanwhile: called every half second while waiting; what it raises ends the waiting.
        Raises:
            TokenSpeedError: the class and text of the engine's own error.
        """
        self._thread.start()
        while not self._settled.wait(_WAIT_S):  # short, so that signals are heard
            meanwhile()
        if self.report is None:
            self._thread.join()
            raise _error_of(self._failure, self._process)
        return self.report

    def begin_stop(self) -> None:
        """Start no engine again; the running one goes on until `stop`."""
        self._stopping.set()

    def kill(self) -> None:
        """SIGKILL the engine, from a signal handler: takes no lock. `stop` must follow."""
        process = self._process
        if process is not None:
            process.kill()

    def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the engine: SIGTERM, then SIGKILL after `timeout_s`. Safe to call twice."""
        self._stopping.set()
        with self._lock:
            process = self._process
            if process is not None:
                process.terminate()
        if process is not None:
            try:
                process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
        while self._thread.is_alive():
            self._thread.join(_WAIT_S)

    def _watch(self) -> None:
        try:
            self._keep_alive()
        except Exception as error:
            LOGGER.exception("the engine's supervisor failed")
            self._failure = StartFailure(
                kind="EngineError",
                message=f"the engine's supervisor failed: {type(error).__name__}: {error}; its log "
                "has the traceback",
            )
            if self._process is not None:
                self._process.kill()
            if self.report is None:
                self._settled.set()
            else:
                self._answer_unhealthy(f"{self._failure.message}; restart the server")

    def _keep_alive(self) -> None:
        while not self._stopping.is_set():
            self._run_once()
            if self._stopping.is_set():
                break
            if self.report is None:  # the first start failed: nothing to go back to
                self._settled.set()
                return
            reason = self._reason_to_give_up()
            if reason:
                self._answer_unhealthy(reason)
                return
            self.state = EngineState.RESTARTING
        self.state = EngineState.STOPPED
        self._settled.set()

    def _run_once(self) -> None:
        """Start one engine process and follow it until it has ended."""
        reading, writing = os.pipe()
        try:
            with self._lock:
                if self._stopping.is_set():
                    return
                self.epoch += 1
                self._process = process = self._spawn(writing)
                self._alive_s, self._is_starting = time.monotonic(), True
        finally:
            os.close(writing)
        with open(reading, "rb", buffering=0) as reports, process:
            self._follow(process, reports.fileno())
            process.wait()
        is_crash = self.report is not None and not self._stopping.is_set()
        if is_crash and process.returncode == 0:
            is_crash = not self._stopping.wait(_OWN_STOP_S)
        LOGGER.log(
            logging.ERROR if is_crash else logging.DEBUG,
            "engine %d (pid %d) %s", self.epoch, process.pid, ending_of(process.returncode),
        )  # fmt: skip

    def _spawn(self, report_fd: int) -> subprocess.Popen[bytes]:
        command = [
            sys.executable, "-P", "-m", "tokenspeed.engine.process",
            "--address", self.address, "--epoch", str(self.epoch), "--record", str(self._record),
            "--report-fd", str(report_fd), "--parent", str(os.getpid()),
            "--log-level", self._log_level,
        ]  # fmt: skip
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            pass_fds=(report_fd, *self._passed_fds),
            start_new_session=True,  # a group's signal goes to the launcher, which ends answers
        )
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it died at once; `_follow` sees that
            process.stdin.write(self._settings + b"\n")
            process.stdin.flush()
        return process

    def _follow(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        """Handle reports until the pipe ends, which is when the process has."""
        decoder = msgspec.json.Decoder(EngineReport)
        rest, next_look_s = b"", 0.0
        while True:
            is_heard = select.select([descriptor], [], [], _POLL_S)[0]
            if time.monotonic() >= next_look_s:
                next_look_s = time.monotonic() + _POLL_S
                self._kill_if_hung(process, is_heard=bool(is_heard))
            if not is_heard:
                continue
            data = os.read(descriptor, 65536)
            if not data:
                return
            self._alive_s = time.monotonic()
            *lines, rest = (rest + data).split(b"\n")
            try:
                for line in lines:
                    self._handle(decoder.decode(line))
            except msgspec.MsgspecError as error:
                self._failure = StartFailure(
                    kind="EngineError",
                    message=f"a report of the engine cannot be read: {error}; launcher and engine "
                    "must be of one version; install again",
                )
                process.kill()
                return

    def _handle(self, report: EngineReport) -> None:
        if isinstance(report, Progress):
            self.has_plugins = self.has_plugins or report.stage not in BEFORE_PLUGINS
            self._on_progress(report)
        elif isinstance(report, StartReport):
            try:
                check_same_plan(self.report, report)
            except errors.PluginError as error:
                self._failure = failure_of(error)
                self.kill()
                return
            self.report = report
            self._is_starting = False
            self.state = EngineState.READY
            self._settled.set()
        elif not isinstance(report, Alive):
            self._failure = report
            if self.report is not None:  # a first start's failure is raised by `start`
                LOGGER.error("engine %d could not start: %s", self.epoch, error_of(report))

    def _kill_if_hung(self, process: subprocess.Popen[bytes], *, is_heard: bool) -> None:
        if self._is_starting:
            self._kill_if_silent(process, is_heard=is_heard)
        if self.state is not EngineState.READY:
            return
        doing = read_doing(self._record)
        age_s = max(doing.step_s, doing.turn_s)
        silent_s = 0.0 if is_heard else time.monotonic() - self._alive_s
        if age_s > self._hang_timeout_s:
            where = "in a step" if doing.step_s else "between steps"
            LOGGER.error("engine %d hangs %s for %.0f s; killed", self.epoch, where, age_s)
            process.kill()
        elif self._num_ranks > 1 and silent_s > self._rank_timeout_s:
            LOGGER.error(
                "rank 0 (pid %d) hangs: it says nothing for %.1f s; killed", process.pid, silent_s
            )
            process.kill()

    def _kill_if_silent(self, process: subprocess.Popen[bytes], *, is_heard: bool) -> None:
        """End an engine that is stopped while it starts."""
        silent_s = 0.0 if is_heard else time.monotonic() - self._alive_s
        if silent_s <= self._start_timeout_s:
            return
        self._failure = StartFailure(
            kind="EngineError",
            message=f"engine {self.epoch} (pid {process.pid}) gives no sign of life for "
            f"{silent_s:.1f} s while it starts, allowed are {self._start_timeout_s:g}; it was "
            "killed: look who stops it, or raise --start-timeout-s",
        )
        LOGGER.error("%s", self._failure.message)
        process.kill()

    def _reason_to_give_up(self) -> str:
        """Return why the engine that ended is not started again, or ""."""
        failure = self._failure
        if failure is not None and failure.id == PLAN_DIFFERS:
            return f"{error_of(failure)}; restart the server"
        return "" if self._may_restart() else _DIED_TOO_OFTEN

    def _may_restart(self) -> bool:
        now = time.monotonic()
        self._restarts_s = [at for at in self._restarts_s if at > now - RESTART_WINDOW_S]
        if len(self._restarts_s) >= MAX_RESTARTS:
            return False
        self._restarts_s.append(now)
        return True

    def _answer_unhealthy(self, reason: str) -> None:
        self.state = EngineState.UNHEALTHY
        LOGGER.error("%s", reason)
        with UnhealthyResponder(self.address, reason) as responder:
            while not self._stopping.is_set():
                responder.answer(wait_ms=200)


def _engine_settings(
    config: EngineConfig, plugins: PluginPlan, ranks: RankSource | None, device_index: int
) -> bytes:
    check_settings(config)  # JSON has no word for NaN
    values = {name: getattr(config, name) for name in settings_of(EngineConfig)}
    settings = EngineSettings(
        config=EngineConfig(**values),
        plugins=plugins.to_json(),
        device_index=device_index,
        ranks=ranks,
    )
    return msgspec.json.encode(settings)


def _error_of(
    failure: StartFailure | None, process: subprocess.Popen[bytes] | None
) -> errors.TokenSpeedError:
    """Return the engine's own error, as if it had been raised here."""
    if failure is None:
        code = None if process is None else process.poll()
        ending = "died" if code is None else ending_of(code)
        return errors.EngineError(
            f"the engine {ending} while it started; its log, if it says more, has the reason"
        )
    return error_of(failure)
