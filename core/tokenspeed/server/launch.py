"""The launcher behind `tokenspeed serve`: takes the port, starts engine and API processes, stops.

One engine process (kept alive by its supervisor) and N API processes that share the port. Children
notice the launcher's death by the end of their stdin, so that nothing outlives it.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from tokenspeed.checkpoint.model_path import expand_model_path
from tokenspeed.config.load import replace_settings
from tokenspeed.engine.supervisor import EngineSupervisor
from tokenspeed.errors import ConfigError
from tokenspeed.log import set_up_logging
from tokenspeed.plugins import check_plugins
from tokenspeed.server.api_process import ApiSettings
from tokenspeed.server.progress import StartProgress
from tokenspeed.server.run_folder import run_folder
from tokenspeed.server.sockets import listen, url_of
from tokenspeed.server.workers import ApiWorkers

if TYPE_CHECKING:
    import socket

    from tokenspeed.config.schema import ServeConfig
    from tokenspeed.engine.reports import StartReport


def serve(config: ServeConfig) -> int:
    """Serve until Ctrl-C or SIGTERM; return the exit code.

    Raises:
        TokenSpeedError: the server cannot start; nothing is left running.
    """
    set_up_logging(config.log_level)
    check_plugins(config.plugins, settings=config.plugin_config)
    signal.signal(signal.SIGTERM, _interrupt)
    with listen(config.host, config.port) as listener, run_folder() as folder:
        return _run(replace_settings(config, model=_model_path(config.model)), listener, folder)


def _run(config: ServeConfig, listener: socket.socket, folder: Path) -> int:
    address = f"ipc://{folder}/engine"
    progress = StartProgress()
    supervisor = EngineSupervisor(
        config,
        address=address,
        folder=folder,
        on_progress=progress.show,
        log_level=config.log_level,
    )
    settings = ApiSettings(config=config, engine_address=address, socket_fd=listener.fileno())
    metrics_folder = folder / "metrics"
    metrics_folder.mkdir()
    workers = ApiWorkers(settings, num_workers=config.api_workers, metrics_folder=metrics_folder)
    try:
        workers.start()
        with progress:
            report = supervisor.start()
            workers.serve(report)
        _print_block(report, url_of(listener))
        workers.run(report)
    except KeyboardInterrupt:
        print("tokenspeed: stopping", file=sys.stderr)
    finally:
        _stop(workers, supervisor)
    return 0


def _stop(workers: ApiWorkers, supervisor: EngineSupervisor) -> None:
    """Stop everything; a second signal stops it at once."""

    def at_once(signal_number: int, frame: object) -> None:
        workers.kill()
        supervisor.stop(timeout_s=0.0)

    signal.signal(signal.SIGINT, at_once)
    signal.signal(signal.SIGTERM, at_once)
    workers.stop()
    supervisor.stop()


def _model_path(model: str) -> str:
    """Return the model's path; without one, the default model's, fetched when it is missing."""
    if model:
        path = expand_model_path(model)
        if not path.exists():
            raise ConfigError(
                f"model {model!r} is not on this machine: a Hugging Face folder or a .gguf file is "
                "needed, nothing is downloaded by name; check the path"
            )
        return str(path)
    from tokenspeed.checkpoint.default_model import fetch_default_model

    return str(fetch_default_model())


def _print_block(report: StartReport, url: str) -> None:
    ready = f"{'ready':<11}{url}   after {report.start_s:.1f} s; Ctrl-C stops"
    print("\n".join((*report.lines(), ready)), file=sys.stderr, flush=True)


def _interrupt(signal_number: int, frame: object) -> NoReturn:
    raise KeyboardInterrupt
