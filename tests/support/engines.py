"""Real engine processes over a scripted model, for tests of the process path."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.frontend import Frontend
from tokenspeed.engine.messages import Delta
from tokenspeed.engine.streams import Stream
from tokenspeed.engine.supervisor import EngineSupervisor
from tokenspeed.server.run_folder import run_folder

Result = TypeVar("Result")

TEST_SETTINGS: dict[str, Any] = {
    "plugins": ("sdk",),
    "block_tokens": 16,
    "max_running": 8,
    "max_step_tokens": 64,
    "threads": 1,
    "kv_gib": 0.001,
}
"""A small engine: 16-token blocks, so that edges are met; about 480 of them."""

CONNECT_TIMEOUT_S = 60.0


class RunningEngine:
    """A supervised engine process and its address. Use it as a context manager."""

    def __init__(self, model: Path, *, hang_timeout_s: float = 300.0, **settings: Any) -> None:
        self._kept = ExitStack()  # a killed test leaves it unlocked: the next one removes it
        self._folder = self._kept.enter_context(run_folder("ts-"))
        self.address = f"ipc://{self._folder}/engine.sock"
        self.supervisor = EngineSupervisor(
            EngineConfig(model=str(model), **{**TEST_SETTINGS, **settings}),
            address=self.address,
            folder=self._folder,
            hang_timeout_s=hang_timeout_s,
        )

    def __enter__(self) -> Self:
        self.supervisor.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.supervisor.stop()
        self._kept.close()

    def run(self, scenario: Callable[[Frontend], Awaitable[Result]]) -> Result:
        """Connect a front end and run a coroutine with it."""

        async def connected() -> Result:
            frontend = await Frontend.connect(self.address, timeout_s=CONNECT_TIMEOUT_S)
            try:
                return await scenario(frontend)
            finally:
                await frontend.close()

        return asyncio.run(connected())

    def kill(self) -> None:
        """Kill the engine process as the kernel would for want of memory."""
        pid = self.supervisor.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)


async def tokens_of(stream: Stream) -> list[int]:
    """Read a stream to its end and return its tokens."""
    return [token for delta in [item async for item in stream] for token in delta.tokens]


async def deltas_of(stream: Stream) -> list[Delta]:
    """Read a stream to its end."""
    return [delta async for delta in stream]


async def stats_when(frontend: Frontend, holds: Callable[[Any], bool], *, timeout_s: float) -> Any:
    """Wait for statistics that satisfy a condition; return the last ones seen either way."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if frontend.stats is not None and holds(frontend.stats):
            break
        await asyncio.sleep(0.05)
    return frontend.stats
