"""Sub-commands of plugins: known from manifests alone, loaded when one of them is called."""

from __future__ import annotations

import argparse
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from tokenspeed.contracts.cli import COMMANDS_OF_WHEELS, CORE_COMMANDS, Command
from tokenspeed.errors import PluginError, plugin_code, told

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True)
class PluginCommand:
    """One command that an installed plugin states.

    Args:
        name: one or two words.
        help: one line.
        plugin_id: who brings it.
    """

    name: str
    help: str
    plugin_id: str


def installed_commands() -> dict[str, PluginCommand]:
    """Return the commands of installed plugins by name; imports nothing of them.

    Whether a plugin is compatible is looked at when one of its commands is called.
    """
    from tokenspeed.plugins.commands import check_commands
    from tokenspeed.plugins.discovery import discover
    from tokenspeed.plugins.trust import check_reserved

    known = {}
    for found in discover().values():
        if found.problem or found.manifest is None or not found.manifest.commands:
            continue
        with contextlib.suppress(PluginError):  # `plugins list` tells of it
            check_reserved(found)
            check_commands(found)
            for name, text in found.manifest.commands.items():
                known[name] = PluginCommand(name, text, found.id)
    return known


def called_command(
    argv: Sequence[str], known: Mapping[str, PluginCommand]
) -> tuple[PluginCommand, list[str]] | None:
    """Return the command that the arguments call, the longer name first, and the rest of them.

    Raises:
        PluginError: it is one that a wheel of ours brings, which is not installed.
    """
    for length in (2, 1):
        name = " ".join(argv[:length])
        if len(argv) >= length and name in known:
            return known[name], list(argv[length:])
    wheel = COMMANDS_OF_WHEELS.get(" ".join(argv[:2]))
    if wheel is not None:
        raise PluginError(
            f"`tokenspeed {' '.join(argv[:2])}` comes with the wheel {wheel}, which is not "
            "installed or cannot be loaded (`tokenspeed plugins list`); install the wheel of this "
            "release from its file",
            id="plugin-not-installed",
        )
    return None


def run_command(command: PluginCommand, arguments: Sequence[str]) -> int:
    """Load the plugin, let the command read its arguments, and run it.

    Raises:
        PluginError: the plugin, or the command, cannot be loaded.
    """
    loaded = _load(command)
    parser = _Parser(
        prog=f"tokenspeed {command.name}", description=command.help, allow_abbrev=False
    )
    loaded.add_arguments(parser)
    return loaded.run(parser.parse_args(arguments))


class _Parser(argparse.ArgumentParser):
    """argparse whose errors are two lines, as those of the core's commands."""

    def error(self, message: str) -> NoReturn:
        usage = f"usage: {self.prog} [options]; `{self.prog} --help` lists them"
        self.exit(2, f"{usage}\n{self.prog}: error: {message}\n")


def _load(command: PluginCommand) -> Command:
    from tokenspeed.plugins.manager import load_plugins

    # Whoever types a command has named its plugin and meant this slot: that is the opt-in.
    registry = load_plugins((command.plugin_id,), role="cli", experimental=(command.plugin_id,))
    offers = [
        item
        for item in registry.offers("cli")
        if (item.plugin_id, item.offer.name) == (command.plugin_id, command.name)
    ]
    if not offers:
        raise PluginError(
            f"plugin {command.plugin_id} is not loaded for commands; its manifest needs the role "
            "cli",
            id="command-refused",
        )
    try:
        with plugin_code():
            loaded: Command = offers[0].offer.load()
    except Exception as error:
        raise PluginError(
            f"plugin {command.plugin_id} failed at load of command {command.name!r}: {told(error)}",
            id="offer-load-failed",
        ) from error
    return loaded


def help_of(commands: Mapping[str, PluginCommand], group: str = "") -> str:
    """Return the lines of help for the commands of plugins, or for those of one group; "" if none.

    Args:
        group: a core command whose verbs are meant.
    """
    lines = [
        (name.removeprefix(f"{group} ") if group else name, item)
        for name, item in sorted(commands.items())
        if (name.partition(" ")[0] if name.partition(" ")[0] in CORE_COMMANDS else "") == group
    ]
    if not lines:
        return ""
    width = max(len(name) for name, _ in lines)
    rows = [f"  {name:{width}}  {item.help}  [{item.plugin_id}]" for name, item in lines]
    return "\n".join(["commands of plugins:", *rows])
