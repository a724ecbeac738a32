"""An API process: `python -m tokenspeed.server.api_process`, started by `launch.py` only.

stdin carries two JSON lines, the settings and, once the engine is ready, its start report; then it
is held open: its end means that the launcher died, and this process with it. stdout carries one
JSON line back: ready, or why not. Loads no torch.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NoReturn

import msgspec

from tokenspeed.config.schema import ServeConfig
from tokenspeed.engine.replicas.supervisors import records_of
from tokenspeed.engine.reports import StartFailure, StartReport, failure_of
from tokenspeed.engine.start_settings import adopt_plan
from tokenspeed.errors import PluginError, TokenSpeedError
from tokenspeed.log import LOGGER, set_up_logging
from tokenspeed.plugins import load_planned

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from tokenspeed.engine.clients import EngineClient
    from tokenspeed.plugins import Registry
    from tokenspeed.server.parsers import ChosenParsers
    from tokenspeed.server.responses.store import ResponseStore
    from tokenspeed.tokenizer.tokenizer import Tokenizer

SWITCH_S = 0.0005
"""How long a thread that parses or renders a long prompt may keep the event loop waiting for the
interpreter; Python's own 5 ms would be felt in every stream."""

GRACE_S = 2
"""How long running answers may go on after SIGTERM; then each ends with an error."""


STOPPING = "the server stops before the answer is complete; send the request to it again later"


class ApiSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the launcher tells an API process.

    Args:
        config: the resolved settings; `model` is a path.
        engine_addresses: ZeroMQ address of each replica's engine.
        socket_fd: inherited listening socket.
        plugins: `PluginPlan.to_json()`, as the launcher made it.
        folder: of this server, gone when it ends; for what its API processes share.
    """

    config: ServeConfig
    engine_addresses: tuple[str, ...]
    socket_fd: int
    plugins: dict[str, Any]
    folder: str


class ApiReady(msgspec.Struct, frozen=True, tag="ready"):
    """The process accepts connections.

    Args:
        parsers: what it parses answers with: part -> PLUGIN/NAME, or "none".
    """

    pid: int
    parsers: dict[str, str]


ApiReport = ApiReady | StartFailure


def main() -> int:
    """Serve until SIGTERM or the launcher's death."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the launcher, which stops us
    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=ApiSettings)
    set_up_logging(settings.config.log_level)
    sys.setswitchinterval(SWITCH_S)
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.handlers = LOGGER.handlers
    uvicorn_log.setLevel(logging.ERROR)  # its warnings tell of odd requests only
    try:
        asyncio.run(_serve(settings))
    except Exception as error:
        LOGGER.debug("an API process failed", exc_info=error)
        is_ours = isinstance(error, TokenSpeedError)
        message = f"an API process failed: {type(error).__name__}: {error}"
        _report(failure_of(error) if is_ours else StartFailure(kind="EngineError", message=message))
        return 1
    return 0


async def _serve(settings: ApiSettings) -> None:
    import uvicorn

    from tokenspeed.server.http.connection import Connection
    from tokenspeed.tokenizer.load import load_tokenizer

    registry = load_planned(adopt_plan(settings.plugins, role="api"), role="api")
    tokenizer = load_tokenizer(settings.config.model)
    parsers = choose_parsers(settings.config, registry, tokenizer)
    report = await asyncio.to_thread(_read_report, sys.stdin.buffer)
    report = msgspec.structs.replace(report, parsers=dict(parsers.pins))
    threading.Thread(target=_die_with_launcher, daemon=True).start()
    frontend = await connect(settings, report)
    app = make_app(
        settings.config,
        frontend,
        tokenizer,
        report,
        parsers=parsers,
        folder=Path(settings.folder),
        responses=_response_store(settings),
        registry=registry,
    )

    class Server(uvicorn.Server):
        """Gives running answers `GRACE_S`, then ends each with an error that names the stop."""

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            asyncio.get_running_loop().call_later(GRACE_S, frontend.give_up, STOPPING)
            await super().shutdown(sockets)

    server = Server(
        uvicorn.Config(
            app,
            loop="asyncio",
            http=Connection,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GRACE_S + 2,
        )
    )
    gc.collect()
    gc.freeze()
    _report(ApiReady(os.getpid(), report.parsers))
    await server.serve(sockets=[socket.socket(fileno=settings.socket_fd)])
    await frontend.close()


async def connect(settings: ApiSettings, report: StartReport) -> EngineClient:
    """Connect to the engine, or to all engines where there are several replicas.

    Raises:
        EngineError, PluginError: one is given up, or is another one than was reported.
    """
    from tokenspeed.engine.frontend import Frontend
    from tokenspeed.engine.replicas.fleet import Fleet
    from tokenspeed.engine.replicas.router import Limits

    addresses = settings.engine_addresses
    if len(addresses) == 1:
        frontend = await Frontend.connect(addresses[0])
        check_engine(frontend.plan_digest, report)
        return frontend
    limits = Limits(max_running=report.max_running, max_step_tokens=report.max_step_tokens)
    records = records_of(len(addresses), Path(settings.folder))
    fleet = await Fleet.connect(addresses, records, limits)
    for digest in fleet.plan_digests:
        check_engine(digest, report)
    return fleet


def check_engine(plan_digest: str, report: StartReport) -> None:
    """Compare the plan of the engine that answered with that of the report.

    Raises:
        PluginError: another engine; names this process and both digests.
    """
    if plan_digest != report.plan_digest:
        raise PluginError(
            f"the api process (pid {os.getpid()}) was started for binding plan "
            f"{report.plan_digest} and meets an engine with {plan_digest}; restart the server",
            id="plan-differs",
        )


def choose_parsers(config: ServeConfig, registry: Registry, tokenizer: Tokenizer) -> ChosenParsers:
    """Choose what answers are parsed with, as the settings say.

    Raises:
        TokenSpeedError: a parser that was named is not there or cannot be loaded.
    """
    from tokenspeed.checkpoint.model_type import model_type_of
    from tokenspeed.server.parser_choice import ParserChooser
    from tokenspeed.tokenizer.chat import ChatTemplate

    chooser = ParserChooser(
        registry,
        template=ChatTemplate.of(tokenizer),
        model_type=model_type_of(config.model),
    )
    return chooser.choose(tools=config.tool_parser, reasoning=config.reasoning_parser)


def make_app(
    config: ServeConfig,
    frontend: EngineClient,
    tokenizer: Tokenizer,
    report: StartReport,
    *,
    parsers: ChosenParsers,
    folder: Path,
    responses: ResponseStore | None = None,
    registry: Registry | None = None,
) -> ASGIApp:
    """Put the parts of the application together."""
    from tokenspeed.engine.replicas.fleet import Fleet
    from tokenspeed.server.app import create_app
    from tokenspeed.server.conversation.chat_prompts import make_chats
    from tokenspeed.server.conversation.prompts import PromptReader
    from tokenspeed.server.conversation.rules import load_rules
    from tokenspeed.server.conversation.sessions import Sessions
    from tokenspeed.server.conversation.template_facts import facts_of
    from tokenspeed.server.engine_health import EngineHealth
    from tokenspeed.server.fleet_health import FleetHealth
    from tokenspeed.server.host_memory import HostMemory
    from tokenspeed.server.http.api_keys import read_api_keys
    from tokenspeed.server.http.bodies import Bodies
    from tokenspeed.server.http.unread import Unread
    from tokenspeed.server.loop_lag import LoopLag
    from tokenspeed.server.metrics import Metrics
    from tokenspeed.server.parts import ApiParts
    from tokenspeed.tokenizer.chat import ChatTemplate
    from tokenspeed.tokenizer.incremental import EncodeCache

    metrics = Metrics(lambda: frontend.stats, report.plan)
    if isinstance(frontend, Fleet):
        metrics.watch_fleet(frontend)
    template = ChatTemplate.of(tokenizer)
    cache = EncodeCache(tokenizer, max_bytes=config.prompt_cache_mib << 20)
    prompts = PromptReader(tokenizer, template=template, cache=cache, model=frontend.model)
    rules = load_rules(config.client_rules, registry, facts_of(template)) if registry else ()
    unread, bodies = Unread(), Bodies()
    stores = {
        "prompt_cache": lambda: cache.num_bytes,
        "unread_answers": lambda: unread.num_bytes,
        "bodies": lambda: bodies.num_bytes,
        "stored_responses": lambda: responses.num_bytes if responses is not None else 0,
    }
    host_memory = HostMemory(metrics.host, stores, unread)
    host_memory.keep_telling()
    LoopLag(metrics.loop_lag.observe).keep_measuring()
    health: EngineHealth | FleetHealth
    if isinstance(frontend, Fleet):
        health = FleetHealth(frontend, stall_s=config.health_stall_s)
    else:
        (record,) = records_of(1, folder)
        health = EngineHealth(frontend, record, stall_s=config.health_stall_s)
    parts = ApiParts(
        frontend=frontend,
        tokenizer=tokenizer,
        prompts=prompts,
        chats=make_chats(config, prompts, tokenizer, frontend.model, rules, metrics),
        sessions=Sessions(),
        metrics=metrics,
        report=report,
        keys=read_api_keys(config),
        health=health,
        keep_alive_s=config.keep_alive_s,
        max_body_bytes=config.max_body_mib << 20,
        max_waiting=config.max_waiting,
        parsers=parsers,
        responses=responses,
        unread=unread,
        bodies=bodies,
        host_memory=host_memory,
    )
    return create_app(parts)


def _response_store(settings: ApiSettings) -> ResponseStore | None:
    """Make this process's share of the store of responses; None: there is none."""
    from tokenspeed.server.responses.store import ResponseStore

    max_bytes = (settings.config.response_store_mib << 20) // settings.config.api_workers
    if not max_bytes:
        return None
    return ResponseStore(Path(settings.folder) / "responses", max_bytes=max_bytes)


def _read_report(stdin: BinaryIO) -> StartReport:
    line = stdin.readline()
    if not line:
        os._exit(1)
    return msgspec.json.decode(line, type=StartReport)


def _report(report: ApiReport) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(report) + b"\n")
    sys.stdout.buffer.flush()


def _die_with_launcher() -> NoReturn:
    # Not through sys.stdin: its lock, held by a daemon thread, aborts the interpreter at exit.
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    sys.exit(main())
