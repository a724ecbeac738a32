"""Which plugins a start loads, as the launcher found them: it travels to every process.

    launcher: make plan --- control channel ---> engine, API, worker: look again, compare, load

Only the launcher scans and probes. A process looks up the planned distributions on its own path and
compares version and RECORD: another file there would compute something else, unnoticed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenspeed import __version__
from tokenspeed.contracts.device import DeviceFacts
from tokenspeed.errors import PluginError
from tokenspeed.plugins.discovery import FoundPlugin, find_planned
from tokenspeed.plugins.registry import PluginStatus
from tokenspeed.plugins.trust import CORE_ID
from tokenspeed.plugins.wheel_record import NO_RECORD, record_digest

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class PlannedPlugin:
    """A plugin that loads where its role is needed.

    Args:
        found: what is installed.
        identity: distribution, version and RECORD digest, as the launcher saw them.
        config: its complete settings.
        devices: what its probe found.
        is_required: its failure stops the start.
        warns: its being left out is logged as a warning.
    """

    found: FoundPlugin
    identity: str
    config: Mapping[str, Any]
    devices: tuple[DeviceFacts, ...]
    is_required: bool
    warns: bool


@dataclass(frozen=True, slots=True)
class PluginPlan:
    """The whole choice of a start.

    Args:
        plugins: what loads, by id; the core's own is always there and not listed.
        statuses: how far every other installed plugin came.
        core: version of tokenspeed that the launcher runs.
    """

    plugins: tuple[PlannedPlugin, ...]
    statuses: tuple[PluginStatus, ...] = ()
    core: str = __version__

    @property
    def items(self) -> dict[str, str]:
        """Identity of everything that loads, by plugin id."""
        return {CORE_ID: self.core, **{item.found.id: item.identity for item in self.plugins}}

    @property
    def digest(self) -> str:
        """16 hex digits over the items: equal in two processes that see the same plugins."""
        return digest_of(self.items)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON data, for the control channel."""
        return {
            "core": self.core,
            "plugins": [_packed(item) for item in self.plugins],
            "statuses": [dataclasses.asdict(status) for status in self.statuses],
        }


@dataclass(frozen=True, slots=True)
class Sighting:
    """What one process sees of the plan, on its own path.

    Args:
        process: such as "engine (pid 7)".
        items: identity by plugin id.
    """

    process: str
    items: Mapping[str, str] = field(default_factory=dict)


def digest_of(items: Mapping[str, str]) -> str:
    """Return 16 hex digits over identities by plugin id."""
    text = "\n".join(f"{plugin_id} {items[plugin_id]}" for plugin_id in sorted(items))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def identity_of(found: FoundPlugin) -> str:
    """Return distribution, version and RECORD digest as one text."""
    record = record_digest(found.info)[:16] if found.path else NO_RECORD
    return f"{found.distribution} {found.version} record {record}"


def receive_plan(data: Mapping[str, Any], *, process: str) -> tuple[PluginPlan, Sighting]:
    """Read a plan that came over the control channel, with what this process sees of it."""
    seen = {item["id"]: find_planned(item["id"], item["distribution"]) for item in data["plugins"]}
    plan = PluginPlan(
        plugins=tuple(_unpacked(item, seen[item["id"]]) for item in data["plugins"]),
        statuses=tuple(_status(item) for item in data["statuses"]),
        core=data["core"],
    )
    items = {plugin_id: identity_of(found) for plugin_id, found in seen.items()}
    return plan, Sighting(process, {CORE_ID: __version__, **items})


def check_sighting(plan: PluginPlan, sighting: Sighting) -> None:
    """Compare what a process sees with the plan.

    Raises:
        PluginError: a difference; names process, plugin, both identities and both digests.
    """
    for plugin_id in sorted({*plan.items, *sighting.items}):
        wanted, have = plan.items.get(plugin_id, "none"), sighting.items.get(plugin_id, "none")
        if wanted != have:
            raise PluginError(
                f"{sighting.process} sees plugin {plugin_id} as {have} (plan digest "
                f"{digest_of(sighting.items)}), the launcher as {wanted} (plan digest "
                f"{plan.digest}); all processes of a server need one environment: give them one, "
                "or restart the server after an upgrade",
                id="plan-differs",
            )


def _packed(item: PlannedPlugin) -> dict[str, Any]:
    return {
        "id": item.found.id,
        "distribution": item.found.distribution,
        "identity": item.identity,
        "config": dict(item.config),
        "devices": [dataclasses.asdict(facts) for facts in item.devices],
        "is_required": item.is_required,
        "warns": item.warns,
    }


def _unpacked(item: Mapping[str, Any], found: FoundPlugin) -> PlannedPlugin:
    return PlannedPlugin(
        found=found,
        identity=item["identity"],
        config=item["config"],
        devices=_devices(item["devices"]),
        is_required=item["is_required"],
        warns=item["warns"],
    )


def _status(item: Mapping[str, Any]) -> PluginStatus:
    return PluginStatus(**{**item, "devices": _devices(item["devices"])})


def _devices(items: list[dict[str, Any]]) -> tuple[DeviceFacts, ...]:
    return tuple(DeviceFacts(**item) for item in items)
