"""The launcher behind `tokenspeed serve`: takes the port, starts engine and API processes, stops.

One engine process a replica (each kept alive by a supervisor) and N API processes that share the
port. Children notice the launcher's death by the end of their stdin, so that nothing outlives it.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from tokenspeed.checkpoint.model_path import existing_model
from tokenspeed.config.load import replace_settings
from tokenspeed.engine.ranks.place import world_of
from tokenspeed.engine.replicas.supervisors import Replicas
from tokenspeed.engine.rules import rules_of
from tokenspeed.engine.start_settings import plugins_of
from tokenspeed.engine.tenant_file import read_tenants
from tokenspeed.log import say, set_up_logging
from tokenspeed.models.modules import check_model_modules
from tokenspeed.server.api_process import ApiSettings
from tokenspeed.server.http.api_keys import read_api_keys
from tokenspeed.server.http.signals import StopSignals
from tokenspeed.server.http.sockets import listen, url_of
from tokenspeed.server.progress import StartProgress
from tokenspeed.server.rank_launch import follow_as_rank, open_ranks
from tokenspeed.server.run_folder import run_folder
from tokenspeed.server.workers import ApiWorkers

if TYPE_CHECKING:
    import socket

    from tokenspeed.config.schema import ServeConfig
    from tokenspeed.engine.ranks.source import RankSource
    from tokenspeed.engine.reports import StartReport
    from tokenspeed.plugins import PluginPlan


def serve(config: ServeConfig) -> int:
    """Serve until Ctrl-C or SIGTERM; return the exit code.

    Raises:
        TokenSpeedError: the server cannot start; nothing is left running.
    """
    world = world_of(config)
    if follow_as_rank(config, world):
        return 0
    set_up_logging(config.log_level)
    if config.model:
        existing_model(config.model)
    read_api_keys(config)
    read_tenants(config.tenants)
    signals = StopSignals()
    signals.install()
    rules_of(config)
    plugins = plugins_of(config)
    check_model_modules(config.model_module, lock=config.plugins_lock)
    with listen(config.host, config.port) as listener, run_folder() as folder:
        config = replace_settings(config, model=_model_path(config.model))
        with open_ranks(config, world) as ranks:
            signals.install()  # Ray has put its own in their place
            return _run(config, plugins, listener, folder, signals, ranks)


def _run(
    config: ServeConfig,
    plugins: PluginPlan,
    listener: socket.socket,
    folder: Path,
    signals: StopSignals,
    ranks: RankSource | None,
) -> int:
    progress = StartProgress()
    replicas = Replicas(
        config, folder=folder, plugins=plugins, ranks=ranks, on_progress=progress.show
    )
    settings = ApiSettings(
        config=config,
        engine_addresses=replicas.addresses,
        socket_fd=listener.fileno(),
        plugins=plugins.to_json(),
        folder=str(folder),
    )
    metrics_folder = folder / "metrics"
    metrics_folder.mkdir()
    workers = ApiWorkers(settings, num_workers=config.api_workers, metrics_folder=metrics_folder)
    try:
        workers.start()
        with progress:
            report = replicas.start(
                meanwhile=lambda: workers.check_starting(has_plugins=replicas.has_plugins)
            )
            ready = workers.serve(report)
        _print_block(msgspec.structs.replace(report, parsers=ready.parsers), url_of(listener))
        workers.run(report)
    except KeyboardInterrupt:
        say("tokenspeed: stopping")
    finally:
        _stop(workers, replicas, signals)
    return 0


def _stop(workers: ApiWorkers, replicas: Replicas, signals: StopSignals) -> None:
    """Stop everything; a second signal kills what is left."""

    def at_once() -> None:
        workers.kill()
        replicas.kill()

    signals.begin_stop(at_once)
    replicas.begin_stop()
    workers.stop()
    replicas.stop()


def _model_path(model: str) -> str:
    """Return the model's path; without one, the default model's, fetched when it is missing."""
    if model:
        return str(existing_model(model))
    from tokenspeed.checkpoint.default_model import fetch_default_model

    return str(fetch_default_model())


def _print_block(report: StartReport, url: str) -> None:
    ready = f"{'ready':<11}{url}   after {report.start_s:.1f} s; Ctrl-C stops"
    say("\n".join((*report.lines(), ready)))
