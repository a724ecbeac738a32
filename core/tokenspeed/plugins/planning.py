"""Makes the plan of a start, in the launcher: discover, trust, compare, probe. Imports no plugin.

A plugin that was named and does not come through stops the start; one that `auto` would have taken
is left out with a reason.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.errors import PluginError, shown
from tokenspeed.log import LOGGER
from tokenspeed.plugins.discovery import FoundPlugin, discover
from tokenspeed.plugins.gate import open_gate
from tokenspeed.plugins.nearest import suggestion
from tokenspeed.plugins.outcome import failed_at, left_out, manifest_of, status_of
from tokenspeed.plugins.plugin_plan import PlannedPlugin, PluginPlan, identity_of
from tokenspeed.plugins.probe import ProbeResult, run_probes
from tokenspeed.plugins.probe_cache import keep_answer, probe_key, read_answer
from tokenspeed.plugins.requested import Candidate, candidates_of
from tokenspeed.plugins.settings import parse_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from tokenspeed.plugins.registry import PluginStatus


def plan_plugins(
    requested: tuple[str, ...],
    *,
    role: str = "engine",
    settings: tuple[str, ...] = (),
    fallback: str = "warn",
    lock: str = "",
    experimental: tuple[str, ...] = (),
    available: Mapping[str, FoundPlugin] | None = None,
) -> PluginPlan:
    """Find, check and probe what was asked for; imports no plugin.

    Args:
        requested: plugin ids; "auto" adds every first-party plugin whose device is found.
        role: of the process that asks; only "cli" does without reference.
        settings: PLUGIN.KEY=VALUE texts.
        fallback: what happens when "auto" must leave out a plugin that failed (a device that is
            not there is no failure): error stops, warn logs, allow is silent.
        lock: lock file that everything is held to; "": none, unless the operator has one.
        experimental: ids of third parties' plugins that may fill experimental slots.
        available: what is installed; None looks.
    Raises:
        PluginError: a plugin that must load is unknown, not trusted (exit 3), incompatible or
            failed.
        ConfigError: a wrong plugin setting.
    """
    found = discover() if available is None else dict(available)
    draft = _Draft()
    for plugin in found.values():
        reason = plugin.problem or f"load it with --plugins {plugin.id}"
        draft.set_status(plugin, "not enabled", reason)
    gate = open_gate(lock=lock, experimental=experimental)
    candidates = candidates_of(found, requested, role=role, fallback=fallback)
    _check_known(experimental, found)
    accepted = [item for item in candidates if draft.attempt(item, "check", gate.check)]
    config = parse_settings(settings, {c.found.id: manifest_of(c.found) for c in accepted})
    probes = _probe(accepted)
    planned = [
        _planned(item, config[item.found.id], probes.get(item.found.id))
        for item in accepted
        if draft.has_device(item, probes.get(item.found.id))
    ]
    loading = {item.found.id for item in planned}
    left_out = [item for key, item in sorted(draft.statuses.items()) if key not in loading]
    return PluginPlan(tuple(planned), tuple(left_out))


NO_DEVICE = "device-not-found"


def _check_known(experimental: tuple[str, ...], found: Mapping[str, FoundPlugin]) -> None:
    """Refuse an opt-in for nobody: it would be meant for somebody else."""
    for plugin_id in experimental:
        if plugin_id not in found:
            raise PluginError(
                f"allow_experimental names {shown(plugin_id)}, which is not installed; "
                f"{suggestion(plugin_id, found)}",
                id="plugin-unknown",
            )


class _Draft:
    """How far each plugin came, while a plan is made."""

    def __init__(self) -> None:
        self.statuses: dict[str, PluginStatus] = {}

    def set_status(self, plugin: FoundPlugin, state: str, reason: str) -> None:
        self.statuses[plugin.id] = status_of(plugin, state, reason)

    def attempt(self, item: Candidate, stage: str, action: Callable[[FoundPlugin], None]) -> bool:
        """Run one stage; failure of a plugin that must load is raised, else it is left out."""
        try:
            action(item.found)
        except PluginError as error:
            if item.is_required:
                raise failed_at(item.found, stage, error) from error
            self.statuses[item.found.id] = left_out(item.found, stage, error, warns=item.warns)
            return False
        return True

    def has_device(self, item: Candidate, probe: ProbeResult | None) -> bool:
        """Say whether the probe found something.

        A named plugin without a device is an error. One that `auto` takes may find nothing; a
        probe that broke is no such answer, for then a device may be there and go unused.
        """
        if probe is None or not probe.reason:
            return True
        if item.is_named or probe.id != NO_DEVICE:
            return self.attempt(item, "probe", _raiser(probe))
        self.set_status(item.found, "no device", probe.reason)
        LOGGER.debug("plugin %s is left out: %s", item.found.id, probe.reason)
        return False


def _probe(accepted: Iterable[Candidate]) -> dict[str, ProbeResult]:
    """Probe those that have a probe; answers of this boot are taken from the cache."""
    results: dict[str, ProbeResult] = {}
    keys: dict[str, str] = {}
    targets: dict[str, str] = {}
    kinds: dict[str, tuple[str, ...]] = {}
    for item in accepted:
        target = manifest_of(item.found).probe
        if not target:
            continue
        plugin_id = item.found.id
        keys[plugin_id] = probe_key(item.found.info, target) if item.found.path else ""
        devices = read_answer(keys[plugin_id])
        if devices is None:
            targets[plugin_id] = target
            kinds[plugin_id] = manifest_of(item.found).device_kinds
        else:
            results[plugin_id] = ProbeResult(devices)
    for plugin_id, result in run_probes(targets, kinds).items():
        results[plugin_id] = result
        if result.devices:
            keep_answer(keys[plugin_id], result.devices)
    return results


def _planned(
    item: Candidate, config: Mapping[str, Any], probe: ProbeResult | None
) -> PlannedPlugin:
    return PlannedPlugin(
        found=item.found,
        identity=identity_of(item.found),
        config=config,
        devices=() if probe is None else probe.devices,
        is_required=item.is_required,
        warns=item.warns,
    )


def _raiser(probe: ProbeResult) -> Callable[[FoundPlugin], None]:
    def action(_: FoundPlugin) -> None:
        error = PluginError(
            f"{probe.reason}; name other plugins, or use --plugins auto", id=probe.id
        )
        error.causes = probe.causes
        raise error

    return action
