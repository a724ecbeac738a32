"""Loads a plan into a Registry: import and register what this process's role needs.

The core's own plugin (`builtin.py`) always loads. `planning.py` made the plan; a plugin that must
load and fails stops the start.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tokenspeed import __version__
from tokenspeed.errors import PluginError, told
from tokenspeed.plugins.commands import CLI_SLOT, check_command_offers
from tokenspeed.plugins.discovery import FoundPlugin
from tokenspeed.plugins.manifest import Manifest
from tokenspeed.plugins.outcome import failed_at, left_out, manifest_of, status_of
from tokenspeed.plugins.planning import plan_plugins
from tokenspeed.plugins.plugin_plan import PlannedPlugin, PluginPlan
from tokenspeed.plugins.registrar import StagedRegistration, run_hooks
from tokenspeed.plugins.registry import Registry
from tokenspeed.plugins.slots import API_VERSION, SLOTS
from tokenspeed.plugins.stated import check_stated
from tokenspeed.plugins.targets import resolve
from tokenspeed.plugins.time_limit import time_limit
from tokenspeed.plugins.trust import CORE_ID

if TYPE_CHECKING:
    from collections.abc import Mapping

BUILTIN_TARGET = "tokenspeed.builtin:plugin"
CORE_MANIFEST = Manifest(
    id=CORE_ID,
    api=f"=={API_VERSION}",
    vendor="tokenspeed",
    device_kinds=(),
    roles=("api", "engine", "worker", "cli"),
    slots={
        name: SLOTS[name].version
        for name in ("client_rule", "grammar", "model", "operator", "parser", "policy")
    },
)
CORE = FoundPlugin(CORE_ID, "tokenspeed", __version__, BUILTIN_TARGET, "", CORE_MANIFEST)


def load_planned(plan: PluginPlan, *, role: str) -> Registry:
    """Import and register what a process of this role needs.

    Args:
        role: api, engine, worker or cli; plugins for other roles are left out, not imported.
    Raises:
        PluginError: a plugin that must load failed.
    """
    registry = Registry()
    for status in plan.statuses:
        registry.set_status(status)
    _register(registry, CORE, role, {})
    for item in plan.plugins:
        roles = manifest_of(item.found).roles
        if role in roles:
            register_planned(registry, item, role=role)
        else:
            reason = f"roles: {', '.join(roles)}"
            registry.set_status(status_of(item.found, "not for this role", reason))
    return registry


def load_plugins(
    requested: tuple[str, ...],
    *,
    role: str,
    settings: tuple[str, ...] = (),
    fallback: str = "warn",
    lock: str = "",
    experimental: tuple[str, ...] = (),
    available: Mapping[str, FoundPlugin] | None = None,
) -> Registry:
    """Plan and load in this process; for the arguments see `plan_plugins`."""
    plan = plan_plugins(
        requested,
        role=role,
        settings=settings,
        fallback=fallback,
        lock=lock,
        experimental=experimental,
        available=available,
    )
    return load_planned(plan, role=role)


def register_planned(registry: Registry, item: PlannedPlugin, *, role: str) -> None:
    """Import one plugin and register all of it, or nothing.

    Raises:
        PluginError: it must load, and failed.
    """
    try:
        _register(registry, item.found, role, item.config)
    except PluginError as error:
        if item.is_required:
            raise failed_at(item.found, "load", error) from error
        status = left_out(item.found, "load", error, warns=item.warns)
        registry.set_status(replace(status, devices=item.devices))
        return
    status = status_of(item.found, "registered", "")
    registry.set_status(replace(status, devices=item.devices))


def _register(
    registry: Registry, plugin: FoundPlugin, role: str, config: Mapping[str, Any]
) -> None:
    registration = StagedRegistration(manifest_of(plugin), role, dict(config))
    try:
        with time_limit(plugin.id):
            run_hooks(_imported(plugin), registration, registry.on_hook_call)
        check_stated(manifest_of(plugin), registration.staged)
        commands = [offer.name for slot, offer in registration.staged if slot == CLI_SLOT]
        check_command_offers(manifest_of(plugin), commands)
    except (PluginError, AssertionError):  # the latter is ours: a hook after the freeze
        raise
    except Exception as error:
        raise PluginError(f"registering raised {told(error)}", id="hook-raised") from error
    registry.commit(plugin.id, plugin.version, registration.staged)
    registry.set_status(status_of(plugin, "registered", ""))


def _imported(plugin: FoundPlugin) -> object:
    try:
        imported: object = resolve(plugin.target)
    except Exception as error:
        raise PluginError(
            f"importing {plugin.target} raised {told(error)}", id="plugin-import-failed"
        ) from error
    return imported
