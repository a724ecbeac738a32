"""Turns the names a user gave into a Registry: discover, trust, compare, probe, import, register.

A plugin that was named and does not become active stops the start; one that `auto` would have
taken is left out with a reason. The core's own plugin (`builtin.py`) always loads, reference too.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from tokenspeed import __version__
from tokenspeed.errors import PluginError
from tokenspeed.log import LOGGER
from tokenspeed.plugins.compatibility import check_compatible
from tokenspeed.plugins.discovery import FoundPlugin, discover
from tokenspeed.plugins.manifest import Manifest
from tokenspeed.plugins.probe import ProbeResult, run_probes
from tokenspeed.plugins.registrar import StagedRegistration, run_hooks
from tokenspeed.plugins.registry import PluginStatus, Registry
from tokenspeed.plugins.requested import Candidate, candidates_of
from tokenspeed.plugins.settings import parse_settings
from tokenspeed.plugins.slots import API_VERSION, SLOTS
from tokenspeed.plugins.stated import check_stated, stated_offers
from tokenspeed.plugins.targets import resolve
from tokenspeed.plugins.trust import CORE_ID, check_reserved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

BUILTIN_TARGET = "tokenspeed.builtin:plugin"
CORE_MANIFEST = Manifest(
    id=CORE_ID,
    api=f"=={API_VERSION}",
    vendor="tokenspeed",
    device_kinds=(),
    roles=("api", "engine", "worker", "cli"),
    slots={name: SLOTS[name].version for name in ("model", "operator", "policy")},
)
CORE = FoundPlugin(CORE_ID, "tokenspeed", __version__, BUILTIN_TARGET, "", CORE_MANIFEST)


def load_plugins(
    requested: tuple[str, ...],
    *,
    role: str,
    settings: tuple[str, ...] = (),
    fallback: str = "warn",
    available: Mapping[str, FoundPlugin] | None = None,
) -> Registry:
    """Load the core's plugin, reference, and what was asked for.

    Args:
        requested: plugin ids; "auto" adds every first-party plugin whose device is found.
        role: process role: api, engine, worker or cli; plugins for other roles are left out.
        settings: PLUGIN.KEY=VALUE texts.
        fallback: what happens when "auto" must leave out a plugin that failed (a device that is
            not there is no failure): error stops, warn logs, allow is silent.
        available: what is installed; None looks.
    Raises:
        PluginError: a plugin that must load is unknown, not trusted (exit 3), incompatible or
            failed.
        ConfigError: a wrong plugin setting.
    """
    registry = Registry()
    found = discover() if available is None else dict(available)
    for plugin in found.values():
        reason = plugin.problem or f"load it with --plugins {plugin.id}"
        _set_status(registry, plugin, "not enabled", reason)
    accepted = _accept(registry, candidates_of(found, requested, role=role, fallback=fallback))
    config = parse_settings(settings, {c.found.id: _manifest(c.found) for c in accepted})
    active = [item for item in accepted if _has_role(registry, item, role)]
    probes = run_probes({c.found.id: p for c in active if (p := _manifest(c.found).probe)})
    _register(registry, CORE, role, {})
    for item in active:
        _load(registry, item, role, config[item.found.id], probes.get(item.found.id))
    return registry


def load_stated(
    registry: Registry, requested: tuple[str, ...], device_kind: str, *, role: str
) -> None:
    """Take the offers that manifests state, of the plugins that need a device to be loaded.

    Nothing of them is imported or probed, so that choices for a device that is not here can be
    explained.

    Args:
        requested: plugin ids; "auto" is every first-party plugin made for the device kind.
    Raises:
        PluginError: as `load_plugins`, but for what only loading finds out.
    """
    found = discover()
    for item in candidates_of(found, requested, role=role, fallback="allow"):
        manifest = item.found.manifest
        is_meant = item.is_named or (manifest and device_kind in manifest.device_kinds)
        if not is_meant or (manifest and not manifest.probe):
            continue
        if _attempt(registry, item, "check", _check_static):
            manifest = _manifest(item.found)
            registry.commit(item.found.id, item.found.version, stated_offers(manifest))
            _set_status(registry, item.found, "stated", "offers are those that its manifest states")


def needs_device(plugin_id: str) -> bool:
    """Say whether an installed plugin looks for a device before it loads."""
    found = discover().get(plugin_id)
    return found is not None and found.manifest is not None and bool(found.manifest.probe)


def check_plugins(
    requested: tuple[str, ...], *, role: str = "engine", settings: tuple[str, ...] = ()
) -> None:
    """Refuse what is wrong by name, trust, version or setting; probes and imports nothing.

    The launcher calls it before it starts a process or reads a model.

    Raises:
        PluginError, ConfigError: as `load_plugins`.
    """
    candidates = candidates_of(discover(), requested, role=role, fallback="allow")
    accepted = _accept(Registry(), candidates)
    parse_settings(settings, {item.found.id: _manifest(item.found) for item in accepted})


def _accept(registry: Registry, candidates: Iterable[Candidate]) -> list[Candidate]:
    return [item for item in candidates if _attempt(registry, item, "check", _check_static)]


def _attempt(
    registry: Registry, item: Candidate, stage: str, action: Callable[[FoundPlugin], None]
) -> bool:
    """Run one stage; failure of a plugin that must load is raised, else it becomes its status."""
    try:
        action(item.found)
    except PluginError as error:
        plugin = item.found
        if item.is_required:
            raise PluginError(
                f"plugin {plugin.id} ({plugin.distribution} {plugin.version}) failed at {stage}: "
                f"{error.message}",
                id=error.id,
                exit_code=error.exit_code,
            ) from error
        _set_status(registry, plugin, "quarantined", f"{stage}: {error}")
        level = logging.WARNING if item.warns else logging.INFO
        LOGGER.log(level, "plugin %s is left out: %s: %s", plugin.id, stage, error)
        return False
    return True


def _check_static(plugin: FoundPlugin) -> None:
    check_reserved(plugin)
    if plugin.problem:
        raise PluginError(plugin.problem, id=plugin.problem_id)
    check_compatible(_manifest(plugin))


def _manifest(plugin: FoundPlugin) -> Manifest:
    assert plugin.manifest is not None, f"{plugin.id} passed the check without a manifest"
    return plugin.manifest


def _has_role(registry: Registry, item: Candidate, role: str) -> bool:
    roles = _manifest(item.found).roles
    if role not in roles:
        _set_status(registry, item.found, "not for this role", f"roles: {', '.join(roles)}")
    return role in roles


def _load(
    registry: Registry,
    item: Candidate,
    role: str,
    config: Mapping[str, Any],
    probe: ProbeResult | None,
) -> None:
    devices = probe.devices if probe is not None else ()
    if probe is not None and probe.reason:
        if item.is_named:
            _attempt(registry, item, "probe", _raiser(probe))
        _set_status(registry, item.found, "no device", probe.reason)
        LOGGER.debug("plugin %s is left out: %s", item.found.id, probe.reason)
        return
    _attempt(registry, item, "load", lambda found: _register(registry, found, role, config))
    registry.note_devices(item.found.id, devices)


def _raiser(probe: ProbeResult) -> Callable[[FoundPlugin], None]:
    def action(_: FoundPlugin) -> None:
        error = PluginError(
            f"{probe.reason}; name other plugins, or use --plugins auto", id=probe.id
        )
        error.causes = probe.causes
        raise error

    return action


def _register(
    registry: Registry, plugin: FoundPlugin, role: str, config: Mapping[str, Any]
) -> None:
    registration = StagedRegistration(_manifest(plugin), role, config)
    run_hooks(_imported(plugin), registration, registry.on_hook_call)
    check_stated(_manifest(plugin), registration.staged)
    registry.commit(plugin.id, plugin.version, registration.staged)
    _set_status(registry, plugin, "registered", "")


def _imported(plugin: FoundPlugin) -> object:
    try:
        imported: object = resolve(plugin.target)
    except Exception as error:
        raise PluginError(
            f"importing {plugin.target} raised {type(error).__name__}: {error}",
            id="plugin-import-failed",
        ) from error
    return imported


def _set_status(registry: Registry, plugin: FoundPlugin, state: str, reason: str) -> None:
    registry.set_status(PluginStatus(plugin.id, plugin.version, plugin.distribution, state, reason))
