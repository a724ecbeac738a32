"""Cli slot: sub-commands that a plugin adds to `tokenspeed`.

The manifest states each command and its one line of help (`[commands]`), so that `--help` and
`plugins list` import nothing; the code is loaded when the command is called. An offer's name is the
command; its `load()` returns a `Command`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

CORE_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "serve": (),
    "generate": (),
    "bench": ("load", "agentic"),
    "simulate": (),
    "top": (),
    "plugins": ("list", "info", "doctor", "explain", "diff", "lock", "verify"),
    "models": ("list", "explain"),
    "tenants": ("list", "set"),
    "completions": (),
}
"""The core's commands and their verbs; no plugin can add one of these."""

COMMANDS_OF_WHEELS: Mapping[str, str] = {
    "plugins new": "tokenspeed-sdk",
    "plugins test": "tokenspeed-sdk",
    "plugins validate": "tokenspeed-sdk",
}
"""Commands that a wheel of ours brings, for whoever has not installed it."""


class Command(Protocol):
    """One sub-command. Required: add_arguments, run."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the command's arguments."""
        ...

    def run(self, args: argparse.Namespace) -> int:
        """Do it: results on stdout, notes on stderr.

        Returns:
            Exit code: 0 ok, 1 problems found, 2 usage. Errors of `errors.py` may be raised.
        """
        ...
