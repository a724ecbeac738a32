"""A real API process in front of an engine that is played: it says a script, a token a step.

The played engine speaks the wire of `engine/channel.py`, so it knows to the microsecond when a step
was published, costs the API process's core nothing, and steps exactly when it is told to.
"""

from __future__ import annotations

import os
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed.config.schema import ServeConfig
from tokenspeed.contracts.sampler import TokenLogprobs
from tokenspeed.engine.channel import ServerChannel
from tokenspeed.engine.messages import (
    WIRE_VERSION,
    CacheReport,
    Delta,
    Hello,
    ModelInfo,
    Submit,
    ToEngine,
    TokensOut,
    Welcome,
)
from tokenspeed.engine.reports import StartReport
from tokenspeed.engine.start_settings import plugins_of
from tokenspeed.server.api_process import ApiSettings
from tokenspeed.server.http.sockets import listen
from tokenspeed.server.run_folder import run_folder
from tokenspeed.server.workers import ApiWorkers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenspeed.engine.channel import Client

PLAN_DIGEST = "played"
MAX_CONTEXT_TOKENS = 1 << 21


@dataclass(slots=True)
class _Request:
    client: Client
    request_id: str
    num_prompt: int
    top_logprobs: int
    num_outputs: int = 0


class PlayedEngine:
    """The engine's end of the channel.

    Args:
        script: token ids that every request is answered with, again and again.
        eos_token_id: what ends an answer when `end` is called.
    """

    def __init__(self, address: str, model: ModelInfo, script: Sequence[int]) -> None:
        self.submitted_s: dict[str, float] = {}
        self._model = model
        self._script = script
        self._channel = ServerChannel(address)
        self._running: dict[str, _Request] = {}

    @property
    def num_running(self) -> int:
        """Requests that were submitted and have not ended."""
        return len(self._running)

    def receive(self, wait_ms: int = 0) -> None:
        """Take what API processes have sent."""
        for client, message in self._channel.receive(wait_ms):
            self._take(client, message)

    def step(self, *, ends: bool = False) -> float:
        """Publish one token of each running request; return when, in seconds of `monotonic`."""
        outgoing: dict[Client, list[Delta]] = {}
        for request in self._running.values():
            outgoing.setdefault(request.client, []).append(self._delta(request, ends=ends))
        if ends:
            self._running.clear()
        messages = [(client, TokensOut(tuple(new), 1)) for client, new in outgoing.items()]
        published_s = time.monotonic()
        for client, message in messages:
            self._channel.send(client, message)
        return published_s

    def close(self) -> None:
        """Release the socket."""
        self._channel.close()

    def _take(self, client: Client, message: ToEngine) -> None:
        if isinstance(message, Hello):
            welcome = Welcome(
                wire_version=WIRE_VERSION, epoch=1, model=self._model, plan_digest=PLAN_DIGEST
            )
            self._channel.send(client, welcome)
        elif isinstance(message, Submit):
            self.submitted_s[message.request_id] = time.monotonic()
            num_prompt = len(message.prompt_ids) // 4
            top = -1 if message.params.logprobs is None else message.params.logprobs
            request = _Request(client, message.request_id, num_prompt, top)
            self._running[message.request_id] = request
        elif (request_id := getattr(message, "request_id", None)) is not None:
            self._running.pop(request_id, None)

    def _delta(self, request: _Request, *, ends: bool) -> Delta:
        token = self._script[request.num_outputs % len(self._script)]
        first: dict[str, Any] = {}
        if not request.num_outputs:
            report = CacheReport(0, request.num_prompt, 0, 0, "new")
            first = {"cached_tokens": 0, "cache": report}
        request.num_outputs += 1
        return Delta(
            request_id=request.request_id,
            tokens=(token,),
            logprobs=_logprobs(token, request.top_logprobs),
            finish_reason="length" if ends else None,
            **first,
        )


def _logprobs(token: int, num_top: int) -> tuple[TokenLogprobs, ...] | None:
    if num_top < 0:
        return None
    top = tuple((token + i, -0.1 - i) for i in range(num_top))
    return (TokenLogprobs(token, -0.1, 1, top),)


class ApiProcess:
    """The API process that is measured: its port, and what it spent."""

    def __init__(self, pid: int, port: int) -> None:
        self.pid = pid
        self.port = port

    def cpu_s(self) -> float:
        """Return the CPU seconds of all of its threads so far, to the nanosecond."""
        spent_ns = 0
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            spent_ns += int((task / "schedstat").read_text().split()[0])
        return spent_ns / 1e9

    def loop_cpu_s(self) -> float:
        """Return the CPU seconds of its event loop's thread so far."""
        path = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat")
        return int(path.read_text().split()[0]) / 1e9


@contextmanager
def served(
    model: ModelInfo, script: Sequence[int], **settings: Any
) -> Iterator[tuple[PlayedEngine, ApiProcess]]:
    """Start an API process for the model at `model.path` and play its engine.

    Args:
        settings: of `ServeConfig`.
    """
    config = ServeConfig(model=model.path, port=0, **settings)
    with listen(config.host, config.port) as listener, run_folder() as folder:
        engine = PlayedEngine(f"ipc://{folder}/engine", model, script)
        workers = _workers(config, listener.fileno(), folder)
        workers.start()
        try:
            pid = _wait_ready(workers, engine)
            yield engine, ApiProcess(pid, listener.getsockname()[1])
        finally:
            workers.stop()
            engine.close()


def _workers(config: ServeConfig, socket_fd: int, folder: Path) -> ApiWorkers:
    settings = ApiSettings(
        config=config,
        engine_addresses=(f"ipc://{folder}/engine",),
        socket_fd=socket_fd,
        plugins=plugins_of(config).to_json(),
        folder=str(folder),
    )
    metrics = folder / "metrics"
    metrics.mkdir()
    return ApiWorkers(settings, num_workers=1, metrics_folder=metrics)


def _wait_ready(workers: ApiWorkers, engine: PlayedEngine) -> int:
    """Welcome the process while it starts; return its pid."""
    pids: list[int] = []
    waiting = threading.Thread(target=lambda: pids.append(workers.serve(_report()).pid))
    waiting.start()
    while waiting.is_alive():
        engine.receive(wait_ms=10)
    if not pids:
        raise RuntimeError("the API process did not start; see its log above")
    return pids[0]


def _report() -> StartReport:
    return StartReport(
        version="0",
        python="",
        pid=os.getpid(),
        device="played",
        plugins=(),
        architecture="played",
        dtype="",
        weights_bytes=0,
        weight_format="none",
        block_tokens=1,
        kv_blocks=1,
        kv_bytes=0,
        policy="",
        max_context_tokens=MAX_CONTEXT_TOKENS,
        max_running=64,
        max_step_tokens=64,
        depth=0,
        kernels=(),
        plan_digest=PLAN_DIGEST,
        plan={"slots": {}, "kernels": [], "is_tainted": False, "digest": PLAN_DIGEST},
    )
