"""The `tokenspeed` command: reads the sub-command and hands over to its file.

Errors of `errors.py` become a line on stderr and an exit code, those about plugins with their
causes below; nothing here loads torch.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import importlib
import os
import re
import sys
import tempfile
import traceback
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from tokenspeed.contracts.cli import CORE_COMMANDS
from tokenspeed.errors import (
    CapabilityError,
    ConfigError,
    IdentifiedError,
    PlacementError,
    PluginError,
    RequestError,
    TokenSpeedError,
    cause_lines,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

COMMANDS = tuple(CORE_COMMANDS)
USAGE = 2
INTERRUPTED = 130
KEPT_TRACEBACKS = 20
"""Files of unexpected errors that are kept in the temporary folder, the newest of this user."""


def run(argv: list[str] | None = None) -> int:
    """Parse `argv` (default: the process's) and run the sub-command; return the exit code."""
    argv = sys.argv[1:] if argv is None else argv
    try:
        return _dispatch(argv)
    except TokenSpeedError as error:
        print(f"tokenspeed: {error}", *_causes(error), sep="\n", file=sys.stderr)
        return exit_code(error)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        sys.stderr.close()
        return 1
    except Exception as error:
        print(f"tokenspeed: {_unexpected(error)}", file=sys.stderr)
        return 1


def _dispatch(argv: list[str]) -> int:
    """Run a command of the core, else one of a plugin."""
    more_help: Callable[[str], str] | None = None
    if not _is_core_command(argv):
        from tokenspeed.cli import plugin_commands

        known = plugin_commands.installed_commands()
        called = plugin_commands.called_command(argv, known)
        if called is not None:
            return plugin_commands.run_command(*called)
        more_help = partial(plugin_commands.help_of, known)
    # One command's options are known without importing the others.
    parser = make_parser(argv[:1] if set(argv[:1]) & set(COMMANDS) else COMMANDS, more_help)
    args = parser.parse_args(argv)
    code: int = args.run(args)
    return code


def _is_core_command(argv: list[str]) -> bool:
    """Say whether no plugin has to be looked at to understand these arguments."""
    verbs = CORE_COMMANDS.get(argv[0]) if argv else None
    if verbs is None:
        return False
    return not verbs or (len(argv) > 1 and argv[1] in verbs)


def _causes(error: TokenSpeedError) -> list[str]:
    """Return the lines under an error about plugins: what lay behind it, and where it is told."""
    if not isinstance(error, IdentifiedError):
        return []
    lines = [f"  caused by {line}" for line in cause_lines(error)]
    return [*lines, f"  docs/plugins/errors.md#{error.id} tells what to do"]


def _unexpected(error: Exception) -> str:
    """Keep the traceback in a file and return one line for the user."""
    text = " ".join(f"{type(error).__name__}: {error}".split())[:500]  # repr hides file names
    message = f"unexpected error: {text}; this is a mistake of tokenspeed or of a plugin, report it"
    _drop_old_tracebacks()
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="tokenspeed-", suffix=".traceback", delete=False, encoding="utf-8"
        ) as file:
            traceback.print_exception(error, file=file)
    except OSError:
        return message
    return f"{message} with {file.name}"


def _drop_old_tracebacks() -> None:
    """Remove all but this user's newest files of `_unexpected`."""
    own: list[tuple[float, str]] = []
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in entries:
            if entry.name.startswith("tokenspeed-") and entry.name.endswith(".traceback"):
                with contextlib.suppress(OSError):  # gone meanwhile
                    status = entry.stat(follow_symlinks=False)
                    if status.st_uid == os.getuid():
                        own.append((status.st_mtime, entry.path))
    for _, path in sorted(own, reverse=True)[KEPT_TRACEBACKS - 1 :]:
        with contextlib.suppress(OSError):
            os.unlink(path)


def exit_code(error: TokenSpeedError) -> int:
    """Return the exit code of an error of ours."""
    if isinstance(error, PluginError):
        return error.exit_code
    if isinstance(error, ConfigError | PlacementError | RequestError):
        return USAGE
    return 5 if isinstance(error, CapabilityError) else 1


def make_parser(
    commands: Iterable[str] = COMMANDS, more_help: Callable[[str], str] | None = None
) -> argparse.ArgumentParser:
    """Build the parser of these sub-commands.

    Args:
        more_help: returns lines for the end of a group's help, or of the whole one ("").
    """
    import tokenspeed

    parser = _Parser(
        prog="tokenspeed",
        description="LLM inference engine for agents, on any accelerator.",
        epilog="`tokenspeed COMMAND --help` shows a command's options.",
    )
    parser.add_argument(
        "--version", action="version", version=f"tokenspeed {tokenspeed.__version__}"
    )
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True, parser_class=_Parser)
    for name in commands:
        importlib.import_module(f"tokenspeed.cli.{name}").add_parser(subparsers)
        if more_help is not None:
            _add_epilog(subparsers.choices[name], more_help(name))
    if more_help is not None:
        _add_epilog(parser, more_help(""))
    return parser


def _add_epilog(parser: argparse.ArgumentParser, text: str) -> None:
    if text:
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
        parser.epilog = "\n\n".join(part for part in (text, parser.epilog) if part)


class _Parser(argparse.ArgumentParser):
    """argparse without abbreviations, that names the nearest option of a wrong one.

    `fill` adds options whose making costs time; it is called once, when they are needed.
    """

    fill: Callable[[argparse.ArgumentParser], None] | None = None

    def filled(self) -> _Parser:
        """Return this parser with all its options."""
        fill, self.fill = self.fill, None
        if fill is not None:
            fill(self)
        return self

    def __init__(self, **options: object) -> None:
        super().__init__(allow_abbrev=False, **options)  # type: ignore[arg-type]

    def parse_known_args(  # type: ignore[override]
        self, args: list[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuse what is left here, where the sub-command's options are known."""
        self.filled()
        found, extra = super().parse_known_args(args, namespace)
        if extra:
            self.error(f"unrecognized arguments: {' '.join(extra)}{self._hint(extra)}")
        return found, extra

    def error(self, message: str) -> NoReturn:
        wrong = re.search(r"invalid choice: '(\S+)' \(choose from (.*)\)", message)
        choices = re.findall(r"[\w-]+", wrong[2]) if wrong else []
        near = difflib.get_close_matches(wrong[1], choices, n=1) if wrong else []
        if near:
            message += f"; did you mean {near[0]}?"
        self.print_usage_line()
        self.exit(USAGE, f"{self.prog}: error: {message}\n")

    def print_usage_line(self) -> None:
        """Print one line: the full usage of `serve` would push the error off the screen."""
        print(f"usage: {self.prog} [options]; `{self.prog} --help` lists them", file=sys.stderr)

    def _hint(self, extra: Iterable[str]) -> str:
        hints = []
        for word in extra:
            near = difflib.get_close_matches(
                word.split("=")[0], self._option_string_actions, n=1, cutoff=0.6
            )
            if word.startswith("-") and near:
                hints.append(near[0])
        return f"; did you mean {' '.join(hints)}?" if hints else ""
