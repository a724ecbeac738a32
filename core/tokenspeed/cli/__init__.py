"""Command line: one file a sub-command; loads no torch before a command needs it."""

from __future__ import annotations


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    from tokenspeed.cli.main import run

    return run(argv)
