"""How far a plugin came, as a status or as the error that stops a start."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from tokenspeed.errors import PluginError
from tokenspeed.log import LOGGER
from tokenspeed.plugins.registry import PluginStatus
from tokenspeed.plugins.trust import CORE_ID

if TYPE_CHECKING:
    from tokenspeed.plugins.discovery import FoundPlugin
    from tokenspeed.plugins.manifest import Manifest


def status_of(plugin: FoundPlugin, state: str, reason: str) -> PluginStatus:
    """Return the status of a plugin in this state."""
    package = "" if plugin.id == CORE_ID else re.split("[.:]", plugin.target)[0]
    return PluginStatus(
        plugin.id, plugin.version, plugin.distribution, state, reason, package=package
    )


def failed_at(plugin: FoundPlugin, stage: str, error: PluginError) -> PluginError:
    """Return the error of a plugin that must load: wheel, version, stage and cause."""
    failed = PluginError(
        f"plugin {plugin.id} ({plugin.distribution} {plugin.version}) failed at {stage}: "
        f"{error.message}",
        id=error.id,
        exit_code=error.exit_code,
    )
    failed.causes = error.causes
    return failed


def left_out(plugin: FoundPlugin, stage: str, error: PluginError, *, warns: bool) -> PluginStatus:
    """Log that a plugin is left out, and return its status."""
    level = logging.WARNING if warns else logging.INFO
    LOGGER.log(level, "plugin %s is left out: %s: %s", plugin.id, stage, error)
    return status_of(plugin, "quarantined", f"{stage}: {error}")


def manifest_of(plugin: FoundPlugin) -> Manifest:
    """Return the manifest.

    Raises:
        PluginError: there is none, for the reason that discovery found.
    """
    if plugin.manifest is None:
        raise PluginError(plugin.problem, id=plugin.problem_id)
    return plugin.manifest
