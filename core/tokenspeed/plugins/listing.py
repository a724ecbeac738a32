"""What is installed, as data for `tokenspeed plugins`: from metadata and manifests, no import."""

from __future__ import annotations

import importlib.metadata
from typing import TYPE_CHECKING, Any

from tokenspeed import __version__
from tokenspeed.errors import PluginError
from tokenspeed.plugins.commands import check_commands
from tokenspeed.plugins.compatibility import check_compatible, check_wheel_tags
from tokenspeed.plugins.discovery import discover
from tokenspeed.plugins.operator_file import read_operator_file
from tokenspeed.plugins.outcome import manifest_of
from tokenspeed.plugins.requested import REFERENCE
from tokenspeed.plugins.slots import SLOTS
from tokenspeed.plugins.trust import CORE_ID, FIRST_PARTY, check_reserved, is_first_party, wheel_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.plugins.discovery import FoundPlugin


_STATES = {
    "always": "enabled",
    "auto": "enabled",
    "when named": "not enabled",
    "never": "broken",
    "not installed": "not installed",
}


def list_plugins(found: Mapping[str, FoundPlugin] | None = None) -> list[dict[str, Any]]:
    """Return one entry a plugin: the core's own, then the installed ones, then missing ours.

    `loads` says when it is loaded: "always", "auto" (when its device is found), "when named",
    "never" (see `problem`) or "not installed"; `state` what a start without flags makes of it.
    """
    installed = discover() if found is None else found
    entries = [_core_entry(), *(describe(plugin) for plugin in installed.values())]
    missing = sorted(FIRST_PARTY - set(installed))
    return [*entries, *(_missing_entry(plugin_id) for plugin_id in missing)]


def describe(plugin: FoundPlugin) -> dict[str, Any]:
    """Return everything known of an installed plugin."""
    problem = find_problem(plugin)
    manifest = plugin.manifest
    return {
        "id": plugin.id,
        "version": plugin.version,
        "wheel": plugin.distribution,
        "summary": _summary(plugin.distribution),
        "loads": "never" if problem else _loads(plugin),
        "state": _STATES["never" if problem else _loads(plugin)],
        "problem": problem,
        "is_first_party": is_first_party(plugin),
        "path": plugin.path,
        "shadowed": list(plugin.shadowed),
        "target": plugin.target,
        "vendor": manifest.vendor if manifest else "",
        "api": manifest.api if manifest else "",
        "device_kinds": list(manifest.device_kinds) if manifest else [],
        "roles": list(manifest.roles) if manifest else [],
        "slots": dict(manifest.slots) if manifest else {},
        "commands": dict(manifest.commands) if manifest else {},
        "requires_abi": dict(manifest.requires_abi) if manifest else {},
        "offers": [
            f"{offer.operator or offer.slot}/{offer.name} ({offer.band})"
            for offer in (manifest.offers if manifest else ())
        ],
        "config": [
            {"name": key.name, "type": key.type, "default": key.default, "help": key.help}
            for key in (manifest.config.values() if manifest else ())
        ],
    }


def find_problem(plugin: FoundPlugin) -> str:
    """Return why the plugin cannot be loaded here, with its diagnostic, or ""."""
    error = find_problem_error(plugin)
    return "" if error is None else str(error)


def find_problem_error(plugin: FoundPlugin) -> PluginError | None:
    """Return why the plugin cannot be loaded here; None: nothing is wrong."""
    try:
        check_reserved(plugin)
        read_operator_file().check_allowed(plugin.id)
        check_compatible(manifest_of(plugin))
        check_wheel_tags(plugin)
        check_commands(plugin)
    except PluginError as error:
        return error
    return None


def _loads(plugin: FoundPlugin) -> str:
    assert plugin.manifest is not None, f"{plugin.id} has neither manifest nor problem"
    if not is_first_party(plugin):
        return "when named"
    if plugin.id == REFERENCE:
        return "always"
    return "auto" if plugin.manifest.probe else "when named"


def _summary(wheel: str) -> str:
    """Return the wheel's one-line description; "" when it has none or is not installed."""
    try:
        metadata = importlib.metadata.metadata(wheel)
    except (importlib.metadata.PackageNotFoundError, ValueError):
        return ""
    return " ".join(metadata.get_all("Summary") or ())


def _core_entry() -> dict[str, Any]:
    return _bare_entry(CORE_ID, __version__, "tokenspeed", "always")


def _missing_entry(plugin_id: str) -> dict[str, Any]:
    return _bare_entry(plugin_id, "-", wheel_of(plugin_id), "not installed")


def _bare_entry(plugin_id: str, version: str, wheel: str, loads: str) -> dict[str, Any]:
    slots = ("client_rule", "grammar", "model", "operator", "parser", "policy")
    names = slots if plugin_id == CORE_ID else ()
    return {
        "id": plugin_id,
        "version": version,
        "wheel": wheel,
        "summary": _summary(wheel),
        "loads": loads,
        "state": _STATES[loads],
        "problem": "",
        "is_first_party": True,
        "path": "",
        "shadowed": [],
        "target": "",
        "vendor": "",
        "api": "",
        "device_kinds": [],
        "roles": [],
        "slots": {name: SLOTS[name].version for name in names},
        "commands": {},
        "requires_abi": {},
        "offers": [],
        "config": [],
    }
