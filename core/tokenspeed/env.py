"""The process environment, read in one place and only while starting."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


def is_strict() -> bool:
    """Say whether `$TOKENSPEED_TEST_STRICT` is 1: what a server counts and bears, tests raise."""
    return os.environ.get("TOKENSPEED_TEST_STRICT") == "1"


def cache_dir() -> Path:
    """Return `$TOKENSPEED_CACHE_DIR`, else `~/.cache/tokenspeed`; not created here."""
    given = os.environ.get("TOKENSPEED_CACHE_DIR")
    return Path(given) if given else Path.home() / ".cache" / "tokenspeed"


@dataclass(frozen=True, slots=True)
class TorchrunVariables:
    """What torchrun tells a process.

    Args:
        run_id, restarts: tell the starts of one job apart.
        has_store: torchrun serves a store at the master's address; else rank 0 does.
    """

    rank: int
    world: int
    master_host: str
    master_port: int
    run_id: str
    restarts: str
    has_store: bool


def torchrun_variables() -> TorchrunVariables | None:
    """Return what torchrun says of this process; None: it did not start it.

    Raises:
        ValueError: a number is none; names the variable.
    """
    environ = os.environ
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(environ.get(name) for name in names):
        return None
    return TorchrunVariables(
        rank=_integer("RANK"),
        world=_integer("WORLD_SIZE"),
        master_host=environ["MASTER_ADDR"],
        master_port=_integer("MASTER_PORT"),
        run_id=environ.get("TORCHELASTIC_RUN_ID", ""),
        restarts=environ.get("TORCHELASTIC_RESTART_COUNT", "0"),
        has_store=environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def _integer(name: str) -> int:
    try:
        return int(os.environ[name])
    except ValueError:
        raise ValueError(f"{name} is {os.environ[name]!r}, a whole number is needed") from None
