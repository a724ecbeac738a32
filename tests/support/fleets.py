"""Real replicas over a scripted model, and a fleet of front ends to them."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self, TypeVar

from tests.support.engines import CONNECT_TIMEOUT_S, TEST_SETTINGS

from tokenspeed.config.schema import ServeConfig
from tokenspeed.engine.replicas.fleet import Fleet
from tokenspeed.engine.replicas.router import Limits
from tokenspeed.engine.replicas.supervisors import Replicas, records_of
from tokenspeed.engine.start_settings import plugins_of
from tokenspeed.server.run_folder import run_folder

Result = TypeVar("Result")


class RunningFleet:
    """Supervised engine processes, as a server's launcher starts them. A context manager."""

    def __init__(self, model: Path, *, replicas: int, **settings: Any) -> None:
        self._kept = ExitStack()  # a killed test leaves it unlocked: the next one removes it
        self._folder = self._kept.enter_context(run_folder("ts-"))
        self.config = ServeConfig(
            model=str(model), replicas=replicas, **{**TEST_SETTINGS, **settings}
        )
        self.replicas = Replicas(self.config, folder=self._folder, plugins=plugins_of(self.config))

    def __enter__(self) -> Self:
        self.replicas.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.replicas.stop()
        self._kept.close()

    def run(self, scenario: Callable[[Fleet], Awaitable[Result]]) -> Result:
        """Connect a fleet and run a coroutine with it."""

        async def connected() -> Result:
            fleet = await Fleet.connect(
                self.replicas.addresses,
                records_of(self.config.replicas, self._folder),
                Limits(
                    max_running=self.config.max_running,
                    max_step_tokens=self.config.max_step_tokens,
                ),
                timeout_s=CONNECT_TIMEOUT_S,
            )
            try:
                return await scenario(fleet)
            finally:
                await fleet.close()

        return asyncio.run(connected())

    def kill(self, number: int) -> None:
        """Kill a replica's engine as the kernel would for want of memory."""
        pid = self.replicas.pids[number]
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
