"""The process environment, read in one place and only while starting."""

from __future__ import annotations

import os
from pathlib import Path


def is_strict() -> bool:
    """Say whether `$TOKENSPEED_TEST_STRICT` is 1: what a server counts and bears, tests raise."""
    return os.environ.get("TOKENSPEED_TEST_STRICT") == "1"


def cache_dir() -> Path:
    """Return `$TOKENSPEED_CACHE_DIR`, else `~/.cache/tokenspeed`; not created here."""
    given = os.environ.get("TOKENSPEED_CACHE_DIR")
    return Path(given) if given else Path.home() / ".cache" / "tokenspeed"
