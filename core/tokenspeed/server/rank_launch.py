"""How the launcher gets the ranks of `--launcher`: started by the engine, by torchrun, by Ray."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokenspeed.engine.ranks.agent import run_agent
from tokenspeed.engine.ranks.source import source_of
from tokenspeed.engine.ranks.torchrun import TorchrunMeeting, torchrun_place
from tokenspeed.log import LOGGER, set_up_logging

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenspeed.config.schema import ServeConfig
    from tokenspeed.engine.ranks.source import RankSource

STOP_GRACE_S = 5.0
"""How long a rank goes on after SIGTERM: rank 0 has got one too, and ends its ranks in order."""


def follow_as_rank(config: ServeConfig, world: int) -> bool:
    """Be one of the further ranks, where torchrun made this process one; False: it is rank 0.

    Returns when rank 0 is gone.
    """
    if world == 1 or config.launcher != "torchrun":
        return False
    variables = torchrun_place(world)
    if variables.rank == 0:
        return False
    set_up_logging(config.log_level)
    stop = _StopSoon()
    LOGGER.info("rank %d of %d: agent of rank 0's server", variables.rank, world)
    address = TorchrunMeeting(variables, config.start_timeout_s).address()
    run_agent(address, variables.rank, is_stopping=stop.is_due)
    return True


@contextmanager
def open_ranks(config: ServeConfig, world: int) -> Iterator[RankSource | None]:
    """Make the further ranks connect here; None: the engine starts them itself.

    Raises:
        TokenSpeedError: the launcher that the settings name cannot give so many ranks.
    """
    if world == 1 or config.launcher == "local":
        yield None
    elif config.launcher == "torchrun":
        meeting = TorchrunMeeting(torchrun_place(world), config.start_timeout_s)
        listener, address = meeting.open()
        with listener:
            yield source_of(listener, address)
    else:
        from tokenspeed.engine.ranks.ray_ranks import ray_ranks

        with ray_ranks(config, world) as source:
            yield source


class _StopSoon:
    """SIGTERM, heard a little later; Ctrl-C is for rank 0."""

    def __init__(self) -> None:
        self._due_s = float("inf")
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._note)

    def is_due(self) -> bool:
        """Say whether the time is over."""
        return time.monotonic() >= self._due_s

    def _note(self, signal_number: int, frame: object) -> None:
        self._due_s = min(self._due_s, time.monotonic() + STOP_GRACE_S)
