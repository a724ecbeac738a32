"""The `tokenspeed` command: reads the sub-command and hands over to its file."""

from __future__ import annotations

import argparse


def run(argv: list[str] | None = None) -> int:
    """Parse `argv` and run the sub-command."""
    import tokenspeed

    parser = argparse.ArgumentParser(prog="tokenspeed", description=tokenspeed.__doc__)
    parser.add_argument(
        "--version", action="version", version=f"tokenspeed {tokenspeed.__version__}"
    )
    parser.parse_args(argv)
    parser.print_help()
    return 0
