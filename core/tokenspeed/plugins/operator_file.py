"""What the operator of this machine allows; no flag, variable or config file can widen it.

The path is fixed: whoever could point it elsewhere could allow anything. A file that is there and
cannot be understood stops every start, so that a typo never opens the door.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import PluginError, reason_of, shown
from tokenspeed.plugins.names import KIND_WORDS
from tokenspeed.plugins.nearest import suggestion
from tokenspeed.plugins.toml_file import read_toml
from tokenspeed.plugins.trust import CORE_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

OPERATOR_FILE = Path("/etc/tokenspeed/plugins.toml")
SCHEMA = 1


@dataclass(frozen=True, slots=True)
class OperatorRules:
    """The file's rules; the defaults forbid nothing.

    Args:
        allow: ids that may load, the core's own aside; None: any that flags name.
        forbid: ids that may not load, whatever `allow` says.
        lock: lock file that every start is held to; "": what --plugins-lock says.
        experimental: third-party plugins may fill experimental slots when opted in.
    """

    allow: frozenset[str] | None = None
    forbid: frozenset[str] = frozenset()
    lock: str = ""
    experimental: bool = True

    def check_allowed(self, plugin_id: str) -> None:
        """Refuse a plugin that may not load.

        Raises:
            PluginError: it is forbidden, or not among the allowed.
        """
        if plugin_id == CORE_ID:
            return
        if plugin_id in self.forbid or (self.allow is not None and plugin_id not in self.allow):
            allowed = "any but those" if self.allow is None else ", ".join(sorted(self.allow))
            raise PluginError(
                f"plugin {plugin_id!r} is forbidden on this machine by {OPERATOR_FILE}: forbidden "
                f"are {', '.join(sorted(self.forbid)) or 'none by name'}, allowed are "
                f"{allowed or 'none'}; ask its operator, or leave the plugin out",
                id="plugin-forbidden",
            )


def read_operator_file() -> OperatorRules:
    """Return the rules of this machine.

    Raises:
        PluginError: the file is there and unreadable, or says something unknown.
    """
    try:
        data = read_toml(OPERATOR_FILE)
    except (FileNotFoundError, NotADirectoryError):
        return OperatorRules()
    except (OSError, ValueError) as error:
        raise _invalid(f"it cannot be read: {reason_of(error)}") from error
    return _parse(data)


def _parse(data: Mapping[str, Any]) -> OperatorRules:
    kinds: dict[str, type] = {
        "schema": int,
        "allow": list,
        "forbid": list,
        "lock": str,
        "experimental": bool,
    }
    for key, value in data.items():
        if key not in kinds:
            raise _invalid(f"unknown key {shown(key)}: {suggestion(key, kinds)}")
        if type(value) is not kinds[key]:
            raise _invalid(f"{key} is {shown(value)}, {KIND_WORDS[kinds[key]]} is needed")
    if data.get("schema") != SCHEMA:
        raise _invalid(f"schema is {shown(data.get('schema'))}, this version reads {SCHEMA}")
    allow = data.get("allow")
    return OperatorRules(
        allow=None if allow is None else _ids(allow),
        forbid=_ids(data.get("forbid", [])),
        lock=data.get("lock", ""),
        experimental=data.get("experimental", True),
    )


def _ids(values: list[Any]) -> frozenset[str]:
    for value in values:
        if not isinstance(value, str):
            raise _invalid(f"a list of plugin ids holds {shown(value)}, texts are needed")
    return frozenset(values)


def _invalid(problem: str) -> PluginError:
    return PluginError(
        f"operator file {OPERATOR_FILE}: {problem}; nothing is loaded until it is correct",
        id="operator-file-invalid",
    )
