"""The API processes as the launcher sees them: spawn, wait until ready, watch, restart, stop."""

from __future__ import annotations

import contextlib
import os
import queue
import select
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import msgspec
from prometheus_client.multiprocess import mark_process_dead

from tokenspeed import errors
from tokenspeed.engine.endings import ending_of
from tokenspeed.engine.reports import error_of
from tokenspeed.log import LOGGER
from tokenspeed.server.api_process import GRACE_S, ApiReady, ApiReport, ApiSettings
from tokenspeed.server.http.signals import POLL_S

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed.engine.reports import StartReport

MAX_RESTARTS = 3
RESTART_WINDOW_S = 300.0


class ApiWorkers:
    """Owns the API processes. Thread: the launcher's; one waiting thread a process.

    Args:
        metrics_folder: existing folder where the processes share their metrics.
    """

    def __init__(self, settings: ApiSettings, *, num_workers: int, metrics_folder: Path) -> None:
        self._settings = settings
        self._num_workers = num_workers
        self._metrics_folder = metrics_folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._ended: queue.SimpleQueue[subprocess.Popen[bytes]] = queue.SimpleQueue()
        self._restarts_s: list[float] = []
        self._failure: errors.TokenSpeedError | None = None

    def start(self) -> None:
        """Spawn all; each loads what it can and waits for the engine's report."""
        self._processes = [self._spawn() for _ in range(self._num_workers)]

    def check_starting(self, *, has_plugins: bool) -> None:
        """See whether a process has already given up, while the engine still starts.

        Args:
            has_plugins: the engine has loaded its plugins. Before, only faults of plugins are
                told: what is wrong with a plugin comes before what is wrong with the model.
        Raises:
            TokenSpeedError: one of them could not start.
        """
        for process in self._processes:
            if process.stdout and select.select([process.stdout], [], [], 0)[0]:
                try:
                    _wait_ready(process)
                except errors.TokenSpeedError as error:
                    self._failure = self._failure or error
        if self._failure and (has_plugins or isinstance(self._failure, errors.PluginError)):
            raise self._failure

    def serve(self, report: StartReport) -> ApiReady:
        """Hand the engine's report over and wait until all accept connections.

        Returns:
            What one of them, and so all, say.
        Raises:
            TokenSpeedError: one of them could not start.
        """
        if self._failure:
            raise self._failure
        for process in self._processes:
            self._hand_over(process, report)
        for process in self._processes:
            ready = _wait_ready(process)
            self._watch(process)
        return ready

    def run(self, report: StartReport) -> None:
        """Restart what dies; returns only by an exception.

        Raises:
            EngineError: API processes die again and again.
        """
        while True:
            try:
                ended = self._ended.get(timeout=POLL_S)
            except queue.Empty:
                continue
            ending = ending_of(ended.returncode)
            LOGGER.error("API process %d %s; it is restarted", ended.pid, ending)
            self._check_restarts()
            self._processes.remove(ended)
            mark_process_dead(ended.pid, str(self._metrics_folder))  # type: ignore[no-untyped-call]
            process = self._spawn()
            self._processes.append(process)
            self._hand_over(process, report)
            _wait_ready(process)
            self._watch(process)

    def stop(self) -> None:
        """SIGTERM, then SIGKILL when the grace is over."""
        for process in self._processes:
            process.terminate()
        deadline_s = time.monotonic() + GRACE_S + 3
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline_s - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()

    def kill(self) -> None:
        """SIGKILL, for a second Ctrl-C."""
        for process in self._processes:
            process.kill()

    def _spawn(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tokenspeed.server.api_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(self._settings.socket_fd,),
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(self._metrics_folder)},
            start_new_session=True,  # a terminal's Ctrl-C goes to the launcher alone
        )
        _write_line(process, msgspec.json.encode(self._settings))
        return process

    def _hand_over(self, process: subprocess.Popen[bytes], report: StartReport) -> None:
        _write_line(process, msgspec.json.encode(report))

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        def wait() -> None:
            process.wait()
            self._ended.put(process)

        threading.Thread(target=wait, name=f"api-{process.pid}", daemon=True).start()

    def _check_restarts(self) -> None:
        now_s = time.monotonic()
        self._restarts_s = [at for at in self._restarts_s if at > now_s - RESTART_WINDOW_S]
        if len(self._restarts_s) >= MAX_RESTARTS:
            raise errors.EngineError(
                f"API processes died {MAX_RESTARTS + 1} times in {RESTART_WINDOW_S:.0f} s; "
                "see the log for the reason, then restart the server"
            )
        self._restarts_s.append(now_s)


def _write_line(process: subprocess.Popen[bytes], line: bytes) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once; `_wait_ready` sees that
        process.stdin.write(line + b"\n")
        process.stdin.flush()


def _wait_ready(process: subprocess.Popen[bytes]) -> ApiReady:
    assert process.stdout is not None
    while not select.select([process.stdout], [], [], POLL_S)[0]:
        pass
    line = process.stdout.readline()
    if not line:
        raise errors.EngineError(
            f"API process {process.pid} {ending_of(process.wait())} while it started; "
            "see the log for the reason"
        )
    try:
        report = msgspec.json.decode(line, type=ApiReport)
    except msgspec.DecodeError as error:
        raise errors.EngineError(
            f"API process {process.pid} wrote {line[:80]!r} instead of its report: {error}; "
            "something in it prints on stdout; see the log, and report it"
        ) from None
    if isinstance(report, ApiReady):
        return report
    raise error_of(report)
