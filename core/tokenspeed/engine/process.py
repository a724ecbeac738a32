"""The engine process: `python -m tokenspeed.engine.process`, started by `supervisor.py` only.

stdin carries settings and plugin plan as one JSON line and is then held open: its end means that
the launcher died, and the engine with it. Reports go to the file descriptor given, as JSON lines.
"""

from __future__ import annotations

import argparse
import gc
import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from tokenspeed.engine.ranks.parent_death import die_with_parent
from tokenspeed.engine.reports import Alive, EngineReport, Progress, failure_of
from tokenspeed.engine.start_settings import EngineSettings, adopt_plan
from tokenspeed.errors import TokenSpeedError
from tokenspeed.log import LOGGER, set_up_logging

if TYPE_CHECKING:
    from tokenspeed.engine.engine import Engine
    from tokenspeed.engine.kv_publisher import KvPublisher

GAVE_UP_EXIT_CODE = 70
"""The engine ended itself to be restarted (EX_SOFTWARE)."""

PROGRESS_INTERVAL_S = 0.05
ALIVE_INTERVAL_S = 0.5


def main(argv: list[str] | None = None) -> int:
    """Build an engine and run it until SIGTERM or the launcher's death."""
    started_s = time.monotonic()
    args = _parser().parse_args(argv)
    set_up_logging(args.log_level)
    die_with_parent(args.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the launcher, which stops us
    signal.signal(signal.SIGTERM, _exit)
    settings = sys.stdin.buffer.readline()
    threading.Thread(target=_die_with_launcher, daemon=True).start()
    reporter = Reporter(args.report_fd)
    started = threading.Event()
    threading.Thread(target=reporter.live, args=(started,), daemon=True).start()
    try:
        engine = _build(msgspec.json.decode(settings, type=EngineSettings), reporter)
        kv_publisher = _open_publisher(engine)
    except Exception as error:
        if not isinstance(error, TokenSpeedError):
            LOGGER.debug("the engine could not be built", exc_info=error)
        reporter.send(failure_of(error))
        return 1
    finally:
        started.set()
    _serve(engine, args, reporter, started_s, kv_publisher)
    return GAVE_UP_EXIT_CODE


class Reporter:
    """Writes reports as JSON lines; progress at most every 50 ms and at the end of a stage."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._next_s = 0.0
        self._lock = threading.Lock()  # keeps the lines of two threads apart

    def progress(self, progress: Progress) -> None:
        """Report progress, unless the last report was just now."""
        if time.monotonic() >= self._next_s or progress.done == progress.total:
            self._next_s = time.monotonic() + PROGRESS_INTERVAL_S
            self.send(progress)

    def live(self, started: threading.Event) -> None:
        """Say that this process is not stopped, until it has started."""
        while not started.wait(ALIVE_INTERVAL_S):
            self.send(Alive())

    def send(self, report: EngineReport) -> None:
        """Write one line; a launcher that is gone is noticed elsewhere."""
        line = msgspec.json.encode(report) + b"\n"
        try:
            with self._lock:
                while line:
                    line = line[os.write(self._descriptor, line) :]
        except BrokenPipeError:
            LOGGER.debug("nobody reads the reports")


def _build(settings: EngineSettings, reporter: Reporter) -> Engine:
    plugins = adopt_plan(settings.plugins, role="engine")
    reporter.send(Progress("libraries"))
    from tokenspeed.engine.build import build_engine
    from tokenspeed.engine.ranks.group import RankStart

    source = settings.ranks
    ranks = RankStart(
        device_index=settings.device_index,
        ends_process=True,
        tick=lambda: reporter.send(Alive()),
    )
    if source is not None:
        ranks = RankStart(
            listener=socket.socket(fileno=source.listener_fd),
            host=source.host,
            token=source.token,
            device_index=source.device_index,
            ends_process=True,
            tick=ranks.tick,
        )
    return build_engine(settings.config, progress=reporter.progress, plugins=plugins, ranks=ranks)


def _open_publisher(engine: Engine) -> KvPublisher | None:
    from tokenspeed.engine.kv_publisher import open_kv_publisher

    return open_kv_publisher(engine.kv_events)


def _serve(
    engine: Engine,
    args: argparse.Namespace,
    reporter: Reporter,
    started_s: float,
    kv_publisher: KvPublisher | None,
) -> None:
    from tokenspeed.engine.channel import ServerChannel
    from tokenspeed.engine.event_loop import EventLoop
    from tokenspeed.engine.flight_record import FlightRecord, read_suspects
    from tokenspeed.engine.intake import now_us
    from tokenspeed.engine.ranks.failure import RankFailure
    from tokenspeed.engine.replicas.feed import KvFeed
    from tokenspeed.errors import EngineError

    suspects = read_suspects(args.record)
    engine.tenants.keep_in(args.record.with_name("tenants"), now_us=now_us())
    channel = ServerChannel(args.address)
    if kv_publisher is not None and kv_publisher.replay_socket is not None:
        channel.watch(kv_publisher.replay_socket)
    loop = EventLoop(
        engine,
        channel,
        epoch=args.epoch,
        record=FlightRecord(args.record, engine.max_running),
        suspects=suspects,
        kv_publisher=kv_publisher,
        kv_feed=KvFeed(channel, engine.info, epoch=args.epoch) if engine.is_routed else None,
    )
    gc.collect()
    gc.freeze()
    start_s = time.monotonic() - started_s
    reporter.send(msgspec.structs.replace(engine.report, start_s=start_s))
    try:
        loop.run()
    except RankFailure as error:
        LOGGER.debug("the replica starts anew: %s", error)  # it was said when it was seen
    except EngineError as error:
        LOGGER.error("%s", error)
    finally:
        if not len(loop.requests):
            loop.flush()
        channel.close()
        engine.close()
        if kv_publisher is not None:
            kv_publisher.close()


def _die_with_launcher() -> NoReturn:
    # Not through sys.stdin: its lock, held by a daemon thread, aborts the interpreter at exit.
    while os.read(0, 4096):
        pass
    os._exit(1)


class Terminated(KeyboardInterrupt):
    """SIGTERM has come; like Ctrl-C it is nothing that a plugin's code has raised."""


def _exit(signal_number: int, frame: object) -> NoReturn:
    raise Terminated


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokenspeed.engine.process", description=__doc__)
    parser.add_argument("--address", required=True, help="ZeroMQ address to listen on")
    parser.add_argument("--epoch", type=int, required=True, help="counts engine starts")
    parser.add_argument("--record", type=Path, required=True, help="flight record file")
    parser.add_argument("--report-fd", type=int, required=True, help="where reports go")
    parser.add_argument("--parent", type=int, required=True, help="process id of the launcher")
    parser.add_argument("--log-level", default="info", help="log level")
    return parser


def _run_and_exit() -> NoReturn:
    """Exit without tearing the interpreter down: it takes long, and frozen objects look leaked."""
    try:
        code = main()
    except Terminated:
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _run_and_exit()
