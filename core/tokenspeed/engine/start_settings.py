"""What the launcher hands to the processes of a server: settings, and the plan of plugins.

It goes over the control channel (their stdin), never by environment. Each process looks the plan's
plugins up on its own path and refuses to start when it sees others.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec

from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.ranks.source import RankSource
from tokenspeed.plugins.planning import plan_plugins
from tokenspeed.plugins.plugin_plan import PluginPlan, check_sighting, receive_plan

if TYPE_CHECKING:
    from collections.abc import Mapping


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """First and only line on an engine's stdin.

    Args:
        config: the resolved settings.
        plugins: `PluginPlan.to_json()`.
        device_index: which of the accelerators of this host is its first rank's.
        ranks: where further ranks connect; None: the engine starts them, if there are to be any.
    """

    config: EngineConfig
    plugins: dict[str, Any]
    device_index: int = 0
    ranks: RankSource | None = None


def plugins_of(config: EngineConfig) -> PluginPlan:
    """Find, check and probe the plugins that the settings name; imports none.

    Raises:
        PluginError, ConfigError: as `plan_plugins`.
    """
    return plan_plugins(
        config.plugins,
        settings=config.plugin_config,
        fallback=config.fallback,
        lock=config.plugins_lock,
        experimental=config.allow_experimental,
    )


def adopt_plan(data: Mapping[str, Any], *, role: str) -> PluginPlan:
    """Read the launcher's plan in a process of this role.

    Raises:
        PluginError: this process sees other plugins; names it, the plugin and both digests.
    """
    plan, sighting = receive_plan(data, process=f"the {role} process (pid {os.getpid()})")
    check_sighting(plan, sighting)
    return plan
