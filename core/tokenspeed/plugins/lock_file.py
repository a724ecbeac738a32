"""Lock files: which distribution, version and files a plugin id stood for when somebody looked.

`tokenspeed plugins lock` writes one, `plugins verify` compares, `serve --plugins-lock` is held to
it. A plugin that the file does not list, or a single other byte, is refused. The wheels that every
plugin stands on, the core's and the sdk's, are always in it (`own_wheels`).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import PluginError, reason_of, shown
from tokenspeed.plugins.discovery import FoundPlugin, find_planned
from tokenspeed.plugins.toml_file import read_toml
from tokenspeed.plugins.trust import CORE_ID, wheel_of
from tokenspeed.plugins.wheel_record import changed_files, record_digest, unlisted_digest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SCHEMA = 1
HEAD = "# Written by `tokenspeed plugins lock`. A plugin loads only as it is written here.\n"
CORE_WHEEL, SDK_ID = "tokenspeed", "sdk"
_FIELDS = ("id", "distribution", "version", "record", "source")


@dataclass(frozen=True, slots=True)
class LockedPlugin:
    """One plugin as it was.

    Args:
        id, distribution, version: of the plugin.
        record: digest of its RECORD.
        source: digest of the package's files that RECORD does not state: all of them in an
            editable install or without a RECORD, or what was added since; "": there are none.
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
    source = unlisted_digest(info, _package_folders(found.target))
    return LockedPlugin(found.id, found.distribution, found.version, record_digest(info), source)


def own_wheels() -> list[FoundPlugin]:
    """Return what plugins stand on: the core's wheel, and the sdk's where it is installed."""
    sdk = find_planned(SDK_ID, wheel_of(SDK_ID))
    return [_core(), *([sdk] if sdk.path else [])]


def find_locked(entry: LockedPlugin) -> FoundPlugin:
    """Return what is installed now of an entry's plugin."""
    return _core() if entry.id == CORE_ID else find_planned(entry.id, entry.distribution)


def _core() -> FoundPlugin:
    for distribution in metadata.distributions(name=CORE_WHEEL):
        path = getattr(distribution, "_path", "")
        return FoundPlugin(CORE_ID, CORE_WHEEL, distribution.version, CORE_WHEEL, str(path))
    raise PluginError(
        f"distribution {CORE_WHEEL} has no metadata on this process's path, so that nothing can be "
        "compared with a lock file; install its wheel, or start without the lock file",
        id="plugin-lock-differs",
    )


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
    try:
        data = read_toml(Path(path))
    except (OSError, ValueError) as error:
        raise _invalid(path, f"it cannot be read: {reason_of(error)}") from error
    schema, plugins = data.get("schema"), data.get("plugins", [])
    if type(schema) is not int or schema != SCHEMA:
        raise _invalid(path, f"schema is {shown(schema)}, this version reads {SCHEMA}")
    if unknown := sorted(data.keys() - {"schema", "plugins"}):
        raise _invalid(path, f"unknown key {shown(unknown[0])}, schema and plugins are allowed")
    if not isinstance(plugins, list):
        raise _invalid(path, f"plugins is {shown(plugins)}, tables are needed")
    entries: dict[str, LockedPlugin] = {}
    for item in plugins:
        entry = _entry(path, item)
        if entry.id in entries:
            raise _invalid(path, f"plugin {shown(entry.id)} is listed twice, once is allowed")
        entries[entry.id] = entry
    return entries


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
                f"plugin {found.id}: {name} is {_value(have, name)}, lock file {path} has "
                f"{_value(wanted, name)}; reinstall the locked version, or write a new lock "
                "file with `tokenspeed plugins lock`",
                id="plugin-lock-differs",
            )


def _entry(path: str, item: Any) -> LockedPlugin:
    if not isinstance(item, dict) or set(item) != set(_FIELDS):
        raise _invalid(
            path, f"a plugin is {shown(item)}, a table of {', '.join(_FIELDS)} is needed"
        )
    for name, value in item.items():
        if not isinstance(value, str):
            raise _invalid(path, f"{name} is {shown(value)}, a text is needed")
    return LockedPlugin(**item)


def _value(entry: LockedPlugin, name: str) -> str:
    value = getattr(entry, name)
    return shown(value) if value else "none"


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
