"""`tokenspeed completions SHELL`: a completion script on stdout, made from the commands by shtab.

`source <(tokenspeed completions bash)` turns it on for one shell; a package installs the file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse

SHELLS = ("bash", "zsh", "tcsh")
FILE_METAVARS = ("FILE", "MODEL", "TRACE", "KIND|PROFILE.json", "A.json", "B.json")
"""Arguments of these names are completed with files."""


def add_parser(subparsers: Any) -> None:
    """Add the sub-command."""
    parser = subparsers.add_parser(
        "completions",
        help="print a shell's completion script",
        description="Print a completion script; `source <(tokenspeed completions bash)` uses it.",
    )
    parser.add_argument("shell", choices=SHELLS, help="which shell")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    import shtab

    from tokenspeed.cli.main import make_parser

    parser = make_parser()
    _mark_files(parser)
    print(shtab.complete(parser, shell=args.shell))
    return 0


def _mark_files(parser: argparse.ArgumentParser) -> None:
    """Tell shtab which arguments are files, in this parser and those of its sub-commands."""
    import shtab

    if hasattr(parser, "filled"):
        parser.filled()
    for action in parser._actions:
        if isinstance(action.choices, dict):
            for child in action.choices.values():
                _mark_files(child)
        elif action.metavar in FILE_METAVARS:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
