"""Plugins: found by manifest, loaded when wanted, registered whole or not at all. Lazy names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenspeed.plugins.binding_plan import BindingPlan
    from tokenspeed.plugins.discovery import discover
    from tokenspeed.plugins.manager import load_planned, load_plugins
    from tokenspeed.plugins.planning import plan_plugins
    from tokenspeed.plugins.plugin_plan import PluginPlan
    from tokenspeed.plugins.registry import PluginStatus, Registry
    from tokenspeed.plugins.targets import lazy

__all__ = [
    "BindingPlan",
    "PluginPlan",
    "PluginStatus",
    "Registry",
    "discover",
    "lazy",
    "load_planned",
    "load_plugins",
    "plan_plugins",
]

_HOMES = {
    "BindingPlan": "binding_plan",
    "PluginPlan": "plugin_plan",
    "PluginStatus": "registry",
    "Registry": "registry",
    "discover": "discovery",
    "lazy": "targets",
    "load_planned": "manager",
    "load_plugins": "manager",
    "plan_plugins": "planning",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokenspeed.plugins' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"tokenspeed.plugins.{_HOMES[name]}"), name)
