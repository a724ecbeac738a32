"""Logging set-up: one handler on stderr; results go to stdout and never through here."""

from __future__ import annotations

import contextlib
import logging
import sys

LOGGER = logging.getLogger("tokenspeed")


def say(text: str) -> None:
    """Print a line for people on stderr; that nobody reads it must stop nothing."""
    with contextlib.suppress(OSError, ValueError):
        print(text, file=sys.stderr, flush=True)


def set_up_logging(level: str) -> None:
    """Send the package's log lines to stderr at `level`; safe to call twice."""
    if not LOGGER.handlers:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
        LOGGER.addHandler(handler)
        LOGGER.propagate = False
    LOGGER.setLevel(level.upper())
