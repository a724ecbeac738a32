"""The commands that manifests state: which names a plugin may take, and who has which.

A plugin's commands begin with its id: whoever types one has named the plugin. The core's own groups
(`plugins`, `models`) take verbs from first-party wheels only, and nobody takes a core command.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tokenspeed.contracts.cli import CORE_COMMANDS
from tokenspeed.errors import PluginError
from tokenspeed.plugins.trust import is_first_party

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenspeed.plugins.discovery import FoundPlugin
    from tokenspeed.plugins.manifest import Manifest

CLI_SLOT = "cli"
_WORDS = re.compile(r"[a-z][a-z0-9-]*( [a-z][a-z0-9-]*)?")


def check_commands(found: FoundPlugin) -> None:
    """Check the commands that a plugin's manifest states.

    Raises:
        PluginError: a name that is malformed, is a core command, or is not the plugin's to take.
    """
    manifest = found.manifest
    assert manifest is not None, f"{found.id} has no manifest"
    if manifest.commands and CLI_SLOT not in manifest.slots:
        raise PluginError(
            f"the manifest states commands and does not fill slot {CLI_SLOT}; add "
            f'`{CLI_SLOT} = "1.0"` to [slots]',
            id="command-refused",
        )
    for name in manifest.commands:
        problem = _problem_of(name, found)
        if problem:
            raise PluginError(f"command {name!r} {problem}", id="command-refused")


def _problem_of(name: str, found: FoundPlugin) -> str:
    if not _WORDS.fullmatch(name):
        return "is no command; one or two words of lower-case letters, digits and - are needed"
    first, _, verb = name.partition(" ")
    own = f"name it {found.id!r} or '{found.id} WORD'"
    if first in CORE_COMMANDS:
        if not verb or verb in CORE_COMMANDS[first] or not CORE_COMMANDS[first]:
            return f"would shadow a command of the core; {own}"
        return "" if is_first_party(found) else f"is a verb of the core's {first!r}; {own}"
    return "" if first == found.id else f"does not begin with the plugin's id; {own}"


def check_command_offers(manifest: Manifest, offered: Iterable[str]) -> None:
    """Check that the hook offers the commands that the manifest states, and no other.

    Raises:
        PluginError: it does not; names the command.
    """
    names = set(offered)
    for name in sorted(names ^ manifest.commands.keys()):
        problem = (
            f"hook register_cli offers command {name!r}, which [commands] of the manifest does not "
            "state; add it with its line of help"
            if name in names
            else f"the manifest states command {name!r}, which hook register_cli does not offer"
        )
        raise PluginError(problem, id="offer-missing")
