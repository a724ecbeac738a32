"""A registry for a device that is not here: what needs the device is known by its manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.errors import PluginError
from tokenspeed.plugins.discovery import discover
from tokenspeed.plugins.gate import open_gate
from tokenspeed.plugins.outcome import failed_at, left_out, manifest_of, status_of
from tokenspeed.plugins.requested import candidates_of
from tokenspeed.plugins.stated import stated_offers

if TYPE_CHECKING:
    from tokenspeed.plugins.registry import Registry
    from tokenspeed.plugins.requested import Candidate


def needs_device(plugin_id: str) -> bool:
    """Say whether an installed plugin looks for a device before it loads."""
    found = discover().get(plugin_id)
    return found is not None and found.manifest is not None and bool(found.manifest.probe)


def add_stated(
    registry: Registry,
    requested: tuple[str, ...],
    device_kind: str,
    *,
    lock: str = "",
    experimental: tuple[str, ...] = (),
) -> None:
    """Take the offers that manifests state, of the plugins that look for a device.

    Nothing of them is imported or probed.

    Args:
        requested: plugin ids; "auto" is every first-party plugin made for the device kind.
        lock, experimental: as in `planning.plan_plugins`.
    Raises:
        PluginError: a named plugin is unknown, not trusted or incompatible.
    """
    gate = open_gate(lock=lock, experimental=experimental)
    for item in candidates_of(discover(), requested, role="engine", fallback="allow"):
        if not _is_meant(item, device_kind):
            continue
        try:
            gate.check(item.found)
        except PluginError as error:
            if item.is_required:
                raise failed_at(item.found, "check", error) from error
            registry.set_status(left_out(item.found, "check", error, warns=item.warns))
            continue
        offers = stated_offers(manifest_of(item.found))
        registry.commit(item.found.id, item.found.version, offers)
        registry.set_status(status_of(item.found, "stated", "known by its manifest only"))


def _is_meant(item: Candidate, device_kind: str) -> bool:
    """Say whether a plugin looks for a device, and is named or made for this kind."""
    manifest = item.found.manifest
    if manifest is None:
        return item.is_named
    return bool(manifest.probe) and (item.is_named or device_kind in manifest.device_kinds)
