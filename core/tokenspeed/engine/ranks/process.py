"""A worker: `python -m tokenspeed.engine.ranks.process`, one process a rank from 1 on.

Started by rank 0's engine, or by an agent elsewhere. All it needs comes over the socket that it is
given; it ends with the end of that socket, and with its parent.
"""

from __future__ import annotations

import argparse
import gc
import mmap
import os
import select
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

import msgspec

from tokenspeed.engine.ranks.messages import (
    FromRank,
    RankBeat,
    RankExperts,
    RankFailed,
    RankGoOn,
    RankHealth,
    RankJoining,
    RankLoaded,
    RankReady,
    RankSettings,
)
from tokenspeed.engine.ranks.parent_death import die_with_parent
from tokenspeed.engine.ranks.progress import RankProgress
from tokenspeed.engine.ranks.wire import encoded, receive_frame, send_frame
from tokenspeed.engine.reports import StartFailure, failure_of
from tokenspeed.engine.start_settings import adopt_plan
from tokenspeed.errors import EngineError, TokenSpeedError, told
from tokenspeed.log import LOGGER, set_up_logging

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.engine.ranks.plans import PlanReceiver
    from tokenspeed.engine.ranks.rank import RankExecutor
    from tokenspeed.placement.expert_load import ExpertLoad

BEAT_S = 0.25


class Control:
    """The worker's end of the control socket. Thread: any."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.progress = RankProgress()
        self.is_ready = False
        self.experts: ExpertLoad | None = None
        """Load that this rank tells rank 0 of."""
        self._lock = threading.Lock()  # orders the frames of two threads

    def send(self, message: FromRank) -> None:
        """Send one message; without rank 0 there is nothing left to do."""
        try:
            with self._lock:
                send_frame(self.sock, encoded(message))
        except OSError:
            os._exit(1)

    def ask(self, message: FromRank) -> RankGoOn:
        """Send one message that rank 0 answers when all ranks have sent it, and wait for that.

        Raises:
            EOFError: rank 0 is gone.
        """
        self.send(message)
        return msgspec.msgpack.decode(receive_frame(self.sock), type=RankGoOn)

    def beat(self) -> NoReturn:
        """Say for ever that this process lives, and end it with rank 0."""
        told_times = 0
        while True:
            if select.select([self.sock], [], [], BEAT_S)[0] and self._is_over():
                os._exit(1)
            self.send(RankBeat(steps=self.progress.steps, calls=self.progress.calls))
            if self.experts is not None and self.experts.times != told_times:
                told_times = self.experts.times
                self.send(RankExperts(load=self.experts))

    def _is_over(self) -> bool:
        """Say whether the stream has ended; what there is to read is another thread's."""
        try:
            return not self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:  # the other thread was faster
            return False


def main(argv: list[str] | None = None) -> int:
    """Build this rank's part and carry out plans until rank 0 says that it is over."""
    args = _parser().parse_args(argv)
    die_with_parent(args.parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = Control(socket.socket(fileno=args.socket))
    try:
        settings = msgspec.json.decode(receive_frame(control.sock), type=RankSettings)
    except EOFError:
        return 1
    # What a worker chooses, rank 0 chooses too, and says.
    set_up_logging("warning" if settings.log_level == "info" else settings.log_level)
    threading.Thread(target=control.beat, daemon=True).start()
    try:
        _work(settings, control, args.ring)
    except EOFError:
        return 1
    except Exception as error:
        if not isinstance(error, TokenSpeedError):
            LOGGER.error("rank %d failed", args.rank, exc_info=error)
        from tokenspeed.engine.ranks.plan_group import PlansLost

        in_collective = control.progress.calls % 2 == 1 or isinstance(error, PlansLost)
        control.send(RankFailed(failure=_failure_of(error, control), in_collective=in_collective))
        return 1
    return 0


def _failure_of(error: Exception, control: Control) -> StartFailure:
    """Return what rank 0 is told: of a start as it is, of a step with its place."""
    if isinstance(error, TokenSpeedError) or not control.is_ready:
        return failure_of(error)
    message = f"step {control.progress.steps} raised {told(error)}; its log has the traceback"
    return StartFailure(kind="EngineError", message=message)


def _work(settings: RankSettings, control: Control, ring_descriptor: int) -> None:
    place = settings.place
    plugins = adopt_plan(settings.plugins, role=f"worker of rank {place.rank}")
    from tokenspeed.engine.ranks.rank import build_worker

    executor = build_worker(
        settings.config,
        plugins,
        place,
        control.progress,
        plan_ranks=() if settings.reader >= 0 else settings.plan_ranks,
        joining=lambda: control.ask(RankJoining(pid=os.getpid())),
        agree=lambda room: control.ask(RankLoaded(room=tuple(room))).room,
        tell_moves=control.send,
    )
    receiver, tell = _channels(settings, control, executor, ring_descriptor)
    if executor.tells_health:
        executor.begin_health(tell, lambda error: _end_failed(error, control))
    gc.collect()
    gc.freeze()
    control.is_ready, control.experts = True, executor.expert_load
    control.send(
        RankReady(
            facts=executor.facts,
            device=executor.device_text,
            tells_health=executor.tells_health,
            stored_keys=executor.stored_keys,
        )
    )
    _follow(receiver, executor, control.progress)


def _follow(receiver: PlanReceiver, executor: RankExecutor, progress: RankProgress) -> None:
    """Carry out plans until an empty message comes."""
    from tokenspeed.engine.ranks.plans import LOOK

    while message := receiver.receive():
        if message == LOOK:
            executor.report_moves()
            continue
        executor.run(message)
        progress.steps += 1
    executor.close()


def _end_failed(error: Exception, control: Control) -> NoReturn:
    """End with an error that is no call's: groups broke in a step that had returned."""
    control.send(RankFailed(failure=_failure_of(error, control), in_collective=True))
    os._exit(1)


def _channels(
    settings: RankSettings, control: Control, executor: RankExecutor, descriptor: int
) -> tuple[PlanReceiver, Callable[[int], None]]:
    """Return what plans come from, and what takes the number of steps that went well."""
    from tokenspeed.engine.ranks.health import HealthBoard
    from tokenspeed.engine.ranks.plans import RingReceiver, map_ring_memory

    if executor.plans is not None:
        return executor.plans, lambda steps: control.send(RankHealth(steps=steps))
    if settings.ring_path:
        descriptor = _opened(settings.ring_path)
    memory: mmap.mmap = map_ring_memory(descriptor, settings.num_readers)
    os.close(descriptor)
    reader, board = settings.reader, HealthBoard(memory, settings.num_readers)
    receiver = RingReceiver(memory, settings.num_readers, reader)
    return receiver, lambda steps: board.write(reader, steps)


def _opened(path: str) -> int:
    try:
        return os.open(path, os.O_RDWR)
    except OSError as error:
        raise EngineError(
            f"the memory that plans come by, {path} of rank 0, cannot be opened: {error}; ranks of "
            "one host name must be in one container and of one user, or give each container a host "
            "name of its own"
        ) from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tokenspeed.engine.ranks.process", description=__doc__)
    parser.add_argument("--rank", type=int, required=True, help="number of the rank")
    parser.add_argument("--parent", type=int, required=True, help="process id of the parent")
    parser.add_argument("--socket", type=int, required=True, help="descriptor of the socket")
    parser.add_argument("--ring", type=int, default=-1, help="descriptor of the plan ring")
    return parser


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)  # tearing the interpreter down takes long
