"""The ranks of a replica as rank 0's engine sees them: started, compared, sent plans, ended.

Thread: the engine's; `watch.py` runs beside it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tokenspeed.config.load import replace_settings
from tokenspeed.engine.ranks.failure import RankFailure
from tokenspeed.engine.ranks.messages import RankGoOn, RankSettings
from tokenspeed.engine.ranks.place import Place, make_rendezvous
from tokenspeed.engine.ranks.plan_channels import PlanChannels
from tokenspeed.engine.ranks.plans import END, LOOK
from tokenspeed.engine.ranks.progress import RankProgress
from tokenspeed.engine.ranks.watch import CAUSE_S, RankWatch
from tokenspeed.engine.ranks.wire import send_frame
from tokenspeed.engine.ranks.workers import accept_workers, difference, spawn_workers
from tokenspeed.errors import EngineError
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tokenspeed.config.schema import EngineConfig
    from tokenspeed.engine.choices import Choices
    from tokenspeed.engine.ranks.messages import RankMoves
    from tokenspeed.engine.ranks.plans import PlanSender
    from tokenspeed.engine.ranks.workers import Worker
    from tokenspeed.errors import TokenSpeedError
    from tokenspeed.placement.expert_load import ExpertLoad
    from tokenspeed.plugins import PluginPlan


LOOK_S = 20e-6
"""How long rank 0 sleeps before it looks again whether the others have made a step."""


@dataclass(frozen=True, slots=True)
class RankStart:
    """How the workers of an engine come to be.

    Args:
        listener: workers connect here; None: they are started on this host.
        host: under which ranks on other hosts reach this one; "": all are on this host.
        token: those that connect must show it.
        device_index: which of the accelerators that this process sees is rank 0's.
        ends_process: this process is the engine's alone, and ends with a failed group.
        tick: called a few times a second once all ranks are ready, by a thread of the group.
    """

    listener: socket.socket | None = None
    host: str = ""
    token: str = ""
    device_index: int = 0
    ends_process: bool = False
    tick: Callable[[], None] = lambda: None


ON_THIS_HOST = RankStart()


class RankGroup:
    """Rank 0 and its workers, which are there from `start` on.

    Args:
        world: number of ranks, 2 or more.
        plugins: the plan that every rank must see as it is.
    """

    def __init__(
        self, config: EngineConfig, plugins: PluginPlan, world: int, start: RankStart
    ) -> None:
        self.progress = RankProgress()
        self.is_in_step = False
        self.device_index = start.device_index
        self._config, self._plugins, self.world, self._start = config, plugins, world, start
        self._rendezvous = make_rendezvous(start.host)
        self._watch = RankWatch(
            self._bring,
            self.progress,
            timeout_s=config.rank_timeout_s,
            start_timeout_s=config.start_timeout_s,
            ends_process=start.ends_process,
            tick=start.tick,
        )
        self._channels = PlanChannels(self._watch.check)
        self._is_open = False
        self._telling: Sequence[Worker] = ()

    @property
    def _first_device(self) -> int:
        """Which device of this host is the first of this replica's; on other hosts it has all."""
        return self.device_index if self._start.listener is None else 0

    @property
    def place(self) -> Place:
        """Rank 0's among the ranks, before it is known where those are."""
        return Place(world=self.world)

    def start(self) -> None:
        """Start the workers, or accept them, beside what this process goes on with."""
        self._watch.start()

    def wait_joining(self) -> Place:
        """Wait until every worker is about to join the communicator; return rank 0's place.

        Raises:
            TokenSpeedError: a worker could not be built so far; names it.
        """
        self._watch.wait_for(lambda worker: worker.is_joining, self.world - 1)
        self._go_on(RankGoOn())
        return self._places(self._watch.workers)[0]

    def join_plans(self, choices: Choices, place: Place) -> None:
        """Join what brings plans to other hosts, right behind the communicator of all ranks."""
        self._channels.join(choices, place)

    def agree(self, room: Sequence[int]) -> tuple[int, ...]:
        """Wait until every worker has its weights; return what every rank has room for.

        However long one of them loads: only silence for `start_timeout_s` ends the wait.

        Args:
            room: of this rank, numbers of whatever must be alike.
        Raises:
            TokenSpeedError: a worker failed; names it.
        """
        self._watch.wait_for(lambda worker: worker.loaded is not None, self.world - 1)
        rooms = [worker.loaded.room for worker in self._watch.workers if worker.loaded is not None]
        least = tuple(min(each) for each in zip(room, *rooms, strict=True))
        self._go_on(RankGoOn(room=least))
        return least

    def check_alike(self, facts: Mapping[str, str]) -> None:
        """Wait until every worker is built, and compare its facts with rank 0's.

        Raises:
            TokenSpeedError: a worker failed, or is built otherwise; names it.
        """
        self._watch.wait_for(lambda worker: worker.ready is not None, self.world - 1)
        for worker in self._watch.workers:
            assert worker.ready is not None
            error = difference(worker.name, dict(facts), worker.ready.facts)
            if error is not None:
                raise error
            LOGGER.info("%s is ready on %s", worker.name, worker.ready.device)
        self._channels.open()
        self._is_open = True
        self._telling = [
            worker for worker in self._watch.workers if worker.ready and worker.ready.tells_health
        ]
        self._watch.begin_running()

    @property
    def sender(self) -> PlanSender:
        """What plans are sent with, once all ranks are there."""
        assert self._is_open, "no plan is sent before all ranks are ready"
        return self._channels

    def expert_loads(self) -> list[ExpertLoad]:
        """Return what other pipeline stages said last of the load of their experts."""
        found = (worker.experts for worker in self._watch.workers)
        return [load for load in found if load is not None]

    def stored_keys(self) -> list[bytes]:
        """Return the keys that each worker's store has found, one behind the other."""
        return [worker.ready.stored_keys for worker in self._watch.workers if worker.ready]

    def take_moves(self) -> Iterator[RankMoves]:
        """Take what workers have said of moves between tiers since the last call."""
        for worker in self._watch.workers:
            while not worker.moves.empty():
                yield worker.moves.get()

    def look(self) -> None:
        """Ask the workers which of their moves have ended.

        Raises:
            RankFailure: a rank is gone.
        """
        self._watch.check()
        try:
            self.sender.send(LOOK)
        except OSError as error:
            self.is_in_step = True
            raise self.cause_of(error) from error

    def check(self) -> None:
        """Raise if a rank has failed."""
        self._watch.check()

    def wait_well(self, num_steps: int) -> None:
        """Wait until so many steps went well on every rank that tells of them.

        Raises:
            RankFailure: one of them failed, or does not come so far.
        """
        waits_since_s = time.monotonic()
        for worker in self._telling:
            while self._channels.steps_well(worker) < num_steps:
                self._watch.check()
                waited_s = time.monotonic() - waits_since_s
                if waited_s > self._config.rank_timeout_s:
                    raise RankFailure(
                        f"{worker.name} hangs: it has not made step {num_steps - 1} for "
                        f"{waited_s:.1f} s, rank 0 has"
                    )
                time.sleep(LOOK_S)

    def cause_of(self, error: BaseException) -> TokenSpeedError:
        """Return why a step, or the start, failed on rank 0: often another rank's failure."""
        in_collective = self.progress.calls % 2 == 1 or isinstance(error, OSError)
        return self._watch.cause_of(error, in_collective=in_collective)

    def failure_behind(self, error: Exception) -> Exception:
        """Return the failure of another rank that made the start fail here, or the error itself."""
        in_collective = self.progress.calls % 2 == 1 or isinstance(error, EngineError | OSError)
        return self._watch.failure_within(CAUSE_S if in_collective else 0.0) or error

    def close(self) -> None:
        """End the workers: in peace between two steps, else at once. Safe to call twice."""
        if self._is_open and not self.is_in_step:
            with contextlib.suppress(OSError, RuntimeError):
                self._watch.check()
                self._channels.send(END)
        self._is_open = False
        self._watch.close(in_peace=not self.is_in_step)
        self._channels.close()

    def _go_on(self, word: RankGoOn) -> None:
        """Answer the workers, all of which wait for it."""
        for worker in self._watch.workers:
            with contextlib.suppress(OSError):  # it died, which the watch sees
                send_frame(worker.sock, msgspec.msgpack.encode(word))

    def _bring(self) -> Sequence[Worker]:
        """Start or accept the workers and tell each its settings; runs on the watch's thread."""
        listener = self._start.listener
        if listener is None:
            self._channels.reach([socket.gethostname()] * self.world)
            workers: Sequence[Worker] = spawn_workers(self.world, self._channels.descriptor)
        else:
            LOGGER.info("rank 0 (pid %d) waits for %d ranks", os.getpid(), self.world - 1)
            workers = accept_workers(
                listener, self.world, self._start.token, self._watch.check_open
            )
            self._channels.reach(_hosts(workers))
        places = self._places(workers)
        for worker in workers:
            settings = RankSettings(
                config=_absolute(self._config),
                plugins=self._plugins.to_json(),
                place=places[worker.rank],
                log_level=logging.getLevelName(LOGGER.getEffectiveLevel()).lower(),
                num_readers=len(self._channels.readers),
                reader=self._channels.reader_of(worker.rank),
                ring_path="" if listener is None else self._channels.path,
                plan_ranks=self._channels.plan_ranks,
            )
            with contextlib.suppress(OSError):  # it died at once, which is seen soon
                send_frame(worker.sock, msgspec.json.encode(settings))
            LOGGER.info("%s: worker of rank 0 (pid %d)", worker.name, os.getpid())
        return workers

    def _places(self, workers: Sequence[Worker]) -> list[Place]:
        """Return every rank's place; ranks of one host share its processors."""
        hosts = _hosts(workers)
        hellos = [worker.hello for worker in workers if worker.hello is not None]
        local = [hosts[:rank].count(host) for rank, host in enumerate(hosts)]
        devices = [self.device_index]
        for hello, by_place in zip(hellos, local[1:], strict=True):
            given = hello.device_index
            devices.append(self._first_device + by_place if given < 0 else given)
        return [
            Place(
                rank=rank,
                world=self.world,
                local_rank=local[rank],
                local_world=hosts.count(host),
                device_index=devices[rank],
                num_hosts=len(set(hosts)),
                rendezvous=self._rendezvous,
            )
            for rank, host in enumerate(hosts)
        ]


def _hosts(workers: Sequence[Worker]) -> list[str]:
    """Return the host of every rank."""
    hellos = (worker.hello for worker in workers)
    return [socket.gethostname(), *(hello.host for hello in hellos if hello is not None)]


def _absolute(config: EngineConfig) -> EngineConfig:
    """Return settings that name the same files to a process in another working folder."""
    paths = {
        name: str(Path(value).expanduser().absolute())
        for name in ("model", "plugins_lock", "kv_store_folder")
        if (value := getattr(config, name))
    }
    return replace_settings(config, **paths)
