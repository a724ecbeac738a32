"""The replicas of one server as its launcher sees them: an engine each, kept alive on its own.

One replica is one supervisor and costs nothing more. Several start at once; each has a folder, an
address, an accelerator (of processors they share one) and settings of its own, see
`settings_of_replica`. Loads no torch.
"""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tokenspeed.config.load import replace_settings
from tokenspeed.engine.flight_record import record_of
from tokenspeed.engine.ranks.place import degrees_of
from tokenspeed.engine.reports import Progress, check_same_plan
from tokenspeed.engine.supervisor import EngineSupervisor
from tokenspeed.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed.config.schema import EngineConfig, ServeConfig
    from tokenspeed.engine.ranks.source import RankSource
    from tokenspeed.engine.reports import StartReport
    from tokenspeed.plugins import PluginPlan

_POLL_S = 0.05


class Replicas:
    """Owns the supervisors. Thread: the launcher's.

    Args:
        folder: of this server; each of several replicas gets one in it.
        ranks: from which the one replica that has several takes them; None: it starts them.
        on_progress: told how far the first one is; the others do the same beside it.
    """

    def __init__(
        self,
        config: ServeConfig,
        *,
        folder: Path,
        plugins: PluginPlan,
        ranks: RankSource | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self.addresses = addresses_of(config.replicas, folder)
        self._supervisors = [
            EngineSupervisor(
                settings_of_replica(config, number),
                address=address,
                folder=_made(place),
                plugins=plugins,
                on_progress=on_progress if number == 0 else None,
                log_level=config.log_level,
                device_index=number * degrees_of(config).world,
                ranks=ranks,
            )
            for number, (address, place) in enumerate(
                zip(self.addresses, folders_of(config.replicas, folder), strict=True)
            )
        ]

    @property
    def has_plugins(self) -> bool:
        """Whether every engine has loaded its plugins."""
        return all(supervisor.has_plugins for supervisor in self._supervisors)

    @property
    def pids(self) -> tuple[int | None, ...]:
        """Process id of each engine."""
        return tuple(supervisor.pid for supervisor in self._supervisors)

    def start(self, *, meanwhile: Callable[[], None] = lambda: None) -> StartReport:
        """Start all engines and wait until all are ready; return what they say.

        Args:
            meanwhile: called every half second while waiting; what it raises ends the waiting.
        Raises:
            TokenSpeedError: the error of the first engine that cannot start.
        """
        first, *others = self._supervisors
        if not others:
            return first.start(meanwhile=meanwhile)
        starts = [_Start(supervisor) for supervisor in self._supervisors]
        while any(start.is_alive for start in starts):
            time.sleep(_POLL_S)
            for start in starts:
                start.check()
            meanwhile()
        reports = [start.result() for start in starts]
        for report in reports[1:]:
            check_same_plan(reports[0], report)
        last_s = max(report.start_s for report in reports)
        return msgspec.structs.replace(reports[0], replicas=len(reports), start_s=last_s)

    def begin_stop(self) -> None:
        """Start no engine again; the running ones go on until `stop`."""
        for supervisor in self._supervisors:
            supervisor.begin_stop()

    def kill(self) -> None:
        """SIGKILL the engines, from a signal handler: takes no lock. `stop` must follow."""
        for supervisor in self._supervisors:
            supervisor.kill()

    def stop(self) -> None:
        """Stop all engines, at once."""
        stops = [threading.Thread(target=supervisor.stop) for supervisor in self._supervisors[1:]]
        for thread in stops:
            thread.start()
        self._supervisors[0].stop()
        for thread in stops:
            thread.join()


class _Start:
    """The start of one engine of several, waited for in a thread of its own."""

    def __init__(self, supervisor: EngineSupervisor) -> None:
        self._report: StartReport | None = None
        self._error: Exception | None = None
        self._supervisor = supervisor
        self._thread = threading.Thread(target=self._run, name="replica-start", daemon=True)
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def check(self) -> None:
        """Raise what has ended the start."""
        if self._error is not None:
            raise self._error

    def result(self) -> StartReport:
        self.check()
        assert self._report is not None
        return self._report

    def _run(self) -> None:
        try:
            self._report = self._supervisor.start()
        except Exception as error:  # raised again by `check`, in the launcher's thread
            self._error = error


def addresses_of(replicas: int, folder: Path) -> tuple[str, ...]:
    """Return the address of each engine of a server."""
    if replicas == 1:
        return (f"ipc://{folder}/engine",)
    return tuple(f"ipc://{folder}/engine{number}" for number in range(replicas))


def folders_of(replicas: int, folder: Path) -> tuple[Path, ...]:
    """Return the folder of each engine of a server; a single one uses the server's own."""
    if replicas == 1:
        return (folder,)
    return tuple(folder / f"replica{number}" for number in range(replicas))


def records_of(replicas: int, folder: Path) -> tuple[Path, ...]:
    """Return the flight record of each engine of a server."""
    return tuple(record_of(place) for place in folders_of(replicas, folder))


def settings_of_replica(config: EngineConfig, number: int) -> EngineConfig:
    """Return the settings of one engine: what two cannot share is its own.

    Ports count up from the one that is set; files, folders and other addresses end in its number.

    Raises:
        ConfigError: the last one's port does not exist.
    """
    if config.replicas == 1:
        return config
    return replace_settings(
        config,
        kv_events=_own_address(config, "kv_events", number),
        kv_events_replay=_own_address(config, "kv_events_replay", number),
        record=config.record and f"{config.record}.{number}",
        kv_store_folder=config.kv_store_folder
        and str(Path(config.kv_store_folder) / f"replica{number}"),
    )


def _own_address(config: EngineConfig, setting: str, number: int) -> str:
    address: str = getattr(config, setting)
    head, colon, port = address.rpartition(":")
    if not address.startswith("tcp:"):
        return address and f"{address}.{number}"
    if not port.isdecimal():
        return address
    if int(port) + config.replicas - 1 > 65535:
        raise ConfigError(
            f"--{setting.replace('_', '-')} is {address!r}, and {config.replicas} replicas take "
            f"the ports from there on; ports end at 65535; give a lower one"
        )
    return f"{head}{colon}{int(port) + number}"


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder
