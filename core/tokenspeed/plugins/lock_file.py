"""Lock files: which distribution, version and files a plugin id stood for when somebody looked.

`tokenspeed plugins lock` writes one, `plugins verify` compares, `serve --plugins-lock` is held to
it. A plugin that the file does not list, or a single other byte, is refused.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import PluginError, reason_of
from tokenspeed.plugins.wheel_record import (
    NO_RECORD,
    changed_files,
    is_editable,
    record_digest,
    tree_digest,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokenspeed.plugins.discovery import FoundPlugin

SCHEMA = 1
HEAD = "# Written by `tokenspeed plugins lock`. A plugin loads only as it is written here.\n"
_FIELDS = ("id", "distribution", "version", "record", "source")


@dataclass(frozen=True, slots=True)
class LockedPlugin:
    """One plugin as it was.

    Args:
        id, distribution, version: of the plugin.
        record: digest of its RECORD.
        source: digest of its package's files where RECORD does not cover them (an editable
            install, or no RECORD); "": it does.
    """

    id: str
    distribution: str
    version: str
    record: str
    source: str = ""


def lock_entry(found: FoundPlugin) -> LockedPlugin:
    """Return a plugin as it is installed now.

    Raises:
        PluginError: files of the wheel are not what its RECORD says.
    """
    info = Path(found.path)
    changed = changed_files(info)
    if changed:
        raise PluginError(
            f"plugin {found.id} ({found.distribution} {found.version}): {_files(changed)} differ "
            f"from RECORD in {found.path}; reinstall the wheel",
            id="plugin-lock-differs",
        )
    record = record_digest(info)
    is_covered = record != NO_RECORD and not is_editable(info)
    source = "" if is_covered else tree_digest(_package_folders(found.target))
    return LockedPlugin(found.id, found.distribution, found.version, record, source)


def lock_text(entries: Iterable[LockedPlugin]) -> str:
    """Return the file for these plugins, by id."""
    parts = [HEAD, f"schema = {SCHEMA}\n"]
    for entry in sorted(entries, key=lambda item: item.id):
        values = (f"{name} = {json.dumps(value)}\n" for name, value in asdict(entry).items())
        parts.append("\n[[plugins]]\n" + "".join(values))
    return "".join(parts)


def read_lock(path: str) -> dict[str, LockedPlugin]:
    """Read a lock file.

    Raises:
        PluginError: it is missing, damaged or of another format.
    """
    import tomllib

    try:
        data = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise _invalid(path, f"it cannot be read: {reason_of(error)}") from error
    if data.get("schema") != SCHEMA:
        raise _invalid(path, f"schema is {data.get('schema')!r}, this version reads {SCHEMA}")
    plugins = data.get("plugins", [])
    if not isinstance(plugins, list):
        raise _invalid(path, f"plugins is {plugins!r}, tables are needed")
    entries = [_entry(path, item) for item in plugins]
    return {entry.id: entry for entry in entries}


def check_locked(found: FoundPlugin, locked: Mapping[str, LockedPlugin], path: str) -> None:
    """Compare an installed plugin with the lock file.

    Raises:
        PluginError: it is not listed, or differs; names what, with both values.
    """
    wanted = locked.get(found.id)
    if wanted is None:
        raise PluginError(
            f"plugin {found.id} ({found.distribution} {found.version}) is not in lock file {path}, "
            f"which lists {', '.join(sorted(locked)) or 'none'}; write a new one with `tokenspeed "
            "plugins lock`, or leave the plugin out",
            id="plugin-not-locked",
        )
    have = lock_entry(found)
    for name in _FIELDS:
        if getattr(have, name) != getattr(wanted, name):
            raise PluginError(
                f"plugin {found.id}: {name} is {getattr(have, name)!r}, lock file {path} has "
                f"{getattr(wanted, name)!r}; reinstall the locked version, or write a new lock "
                "file with `tokenspeed plugins lock`",
                id="plugin-lock-differs",
            )


def _entry(path: str, item: Any) -> LockedPlugin:
    if not isinstance(item, dict) or set(item) != set(_FIELDS):
        raise _invalid(path, f"a plugin is {item!r}, a table of {', '.join(_FIELDS)} is needed")
    for name, value in item.items():
        if not isinstance(value, str):
            raise _invalid(path, f"{name} is {value!r}, a text is needed")
    return LockedPlugin(**item)


def _package_folders(target: str) -> list[Path]:
    spec = find_spec(target.partition(":")[0].partition(".")[0])
    locations = spec.submodule_search_locations if spec is not None else None
    return [Path(location) for location in locations or ()]


def _files(paths: list[str]) -> str:
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(paths[:3]) + more


def _invalid(path: str, problem: str) -> PluginError:
    return PluginError(
        f"lock file {path}: {problem}; write it with `tokenspeed plugins lock --output FILE`",
        id="plugin-lock-invalid",
    )
