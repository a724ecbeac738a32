"""From the names a user gave to the plugins that are tried: the named, reference, and `auto`'s."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.errors import PluginError
from tokenspeed.plugins.nearest import nearest
from tokenspeed.plugins.trust import CORE_ID, FIRST_PARTY, is_first_party, wheel_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tokenspeed.plugins.discovery import FoundPlugin

AUTO = "auto"
REFERENCE = "reference"
LISTING_ROLE = "cli"
"""Listings answer without any kernel wheel, and beside one that cannot run here."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A plugin that will be tried.

    Args:
        found: what is installed.
        is_required: its failure stops the start: it was named, or `fallback` is "error".
        is_named: it was named, so that a missing device is a failure too.
        warns: being left out is logged as a warning.
    """

    found: FoundPlugin
    is_required: bool
    is_named: bool
    warns: bool


def candidates_of(
    found: Mapping[str, FoundPlugin], requested: Iterable[str], *, role: str, fallback: str
) -> list[Candidate]:
    """Return what to try, by id.

    Raises:
        PluginError: a name that is not installed, or reference missing where a kernel is needed.
    """
    requested = set(requested) - {CORE_ID}
    named = _named(found, requested - {AUTO}, role)
    candidates = {name: Candidate(found[name], True, True, False) for name in named}
    if REFERENCE in named - requested and role == LISTING_ROLE:
        candidates[REFERENCE] = Candidate(found[REFERENCE], False, False, True)
    for plugin in found.values() if AUTO in requested else ():
        if plugin.id not in candidates and _is_tried_by_auto(plugin):
            is_required, warns = fallback == "error", fallback == "warn"
            candidates[plugin.id] = Candidate(plugin, is_required, False, warns)
    return [candidates[plugin_id] for plugin_id in sorted(candidates)]


def _named(found: Mapping[str, FoundPlugin], names: set[str], role: str) -> set[str]:
    wanted = names | {REFERENCE}
    if REFERENCE not in found and REFERENCE not in names and role == LISTING_ROLE:
        wanted.discard(REFERENCE)
    for name in sorted(wanted):
        if name not in found:
            raise _unknown(name, found)
    return wanted


def _is_tried_by_auto(plugin: FoundPlugin) -> bool:
    """Ours, and made for a device; one whose manifest is broken is tried, and says so."""
    return is_first_party(plugin) and (plugin.manifest is None or bool(plugin.manifest.probe))


def _unknown(name: str, found: Mapping[str, FoundPlugin]) -> PluginError:
    if name in FIRST_PARTY:
        need = "every start needs its kernels" if name == REFERENCE else "it was named"
        return PluginError(
            f"plugin {name!r} is not installed; installed: {', '.join(sorted(found)) or 'none'}; "
            f"{need}; install the wheel {wheel_of(name)} of this release from its file",
            id="plugin-not-installed",
        )
    near = nearest(name, [*found, AUTO])
    hint = f"did you mean {near!r}?" if near else "install its wheel or correct the name"
    return PluginError(
        f"unknown plugin {name!r}; installed: {', '.join(sorted(found)) or 'none'}; {hint}",
        id="plugin-unknown",
    )
