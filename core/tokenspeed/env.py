"""The process environment, read in one place and only while starting."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return `$TOKENSPEED_CACHE_DIR`, else `~/.cache/tokenspeed`; not created here."""
    given = os.environ.get("TOKENSPEED_CACHE_DIR")
    return Path(given) if given else Path.home() / ".cache" / "tokenspeed"


OPENMP_SPINS = "20000"
"""Turns that a waiting OpenMP thread spins before it sleeps, some tens of microseconds."""


def limit_openmp_spinning() -> None:
    """Let waiting OpenMP threads sleep soon; call before torch loads its OpenMP library.

    By default they spin for milliseconds, and one other busy process is enough to make every
    parallel region wait for a thread that is not scheduled: decoding SmolLM2 on 2 cores beside
    three busy processes ran at 2 tok/s with the default and at 22 tok/s with this limit. A user's
    own `OMP_WAIT_POLICY` or `GOMP_SPINCOUNT` stays.
    """
    if not {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"} & os.environ.keys():
        os.environ["GOMP_SPINCOUNT"] = OPENMP_SPINS
