"""Decides from data alone whether a plugin fits this core and this environment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.errors import PluginError
from tokenspeed.plugins.host_facts import environment_facts, tag_problem
from tokenspeed.plugins.slots import API_VERSIONS, EXPERIMENTAL, live_slot
from tokenspeed.plugins.trust import is_first_party
from tokenspeed.plugins.versions import satisfies

if TYPE_CHECKING:
    from collections.abc import Collection

    from tokenspeed.plugins.discovery import FoundPlugin
    from tokenspeed.plugins.manifest import Manifest


def check_compatible(manifest: Manifest) -> None:
    """Compare API range, slot versions and ABI facts.

    Raises:
        PluginError: the first thing that does not fit, with both versions and the fix.
    """
    if not any(satisfies(version, manifest.api) for version in API_VERSIONS):
        raise PluginError(
            f"needs plugin API {manifest.api}, this tokenspeed has {' and '.join(API_VERSIONS)}; "
            "install a version of the plugin made for it",
            id="plugin-api-mismatch",
        )
    for name, built_against in manifest.slots.items():
        _check_slot(name, built_against)
    facts = environment_facts() if manifest.requires_abi else {}
    for name, wanted in manifest.requires_abi.items():
        have = facts.get(name)
        if have is None or not satisfies(have, wanted):
            raise PluginError(
                f"needs {name} {wanted}, found {have or 'none'}; install a matching {name} or "
                "another build of the plugin",
                id="abi-mismatch",
            )


def _check_slot(name: str, built_against: str) -> None:
    """Take this major up to its own minor, and any minor of the major before it."""
    have = live_slot(name).version
    wanted_major, _, wanted_minor = built_against.partition(".")
    major, _, minor = have.partition(".")
    majors = [int(major), *([int(major) - 1] if int(major) > 1 else [])]
    if int(wanted_major) not in majors:
        takes = " and ".join(f"{number}.x" for number in majors)
        older = int(wanted_major) < majors[-1]
        raise PluginError(
            f"was built against slot {name} {built_against}, this tokenspeed takes {takes}; "
            + ("install a newer version of the plugin" if older else "upgrade tokenspeed"),
            id="slot-version-mismatch",
        )
    if int(wanted_major) == majors[0] and int(wanted_minor) > int(minor):
        raise PluginError(
            f"was built against slot {name} {built_against}, this tokenspeed has {have}; "
            "upgrade tokenspeed",
            id="slot-version-mismatch",
        )


def check_wheel_tags(found: FoundPlugin) -> None:
    """Compare the tags that the wheel was built with; an installer did so, for another Python.

    Raises:
        PluginError: native code for another Python, machine or C library.
    """
    try:
        text = (found.info / "WHEEL").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    lines = (line.partition(":") for line in text.splitlines())
    problem = tag_problem(tuple(value.strip() for name, _, value in lines if name == "Tag"))
    if problem:
        raise PluginError(
            f"{problem}; install the wheel again in this environment", id="abi-mismatch"
        )


def check_opted_in(found: FoundPlugin, allowed: Collection[str]) -> None:
    """Refuse a third party's plugin in an experimental slot, unless somebody opted in.

    Args:
        allowed: plugin ids with the opt-in.
    Raises:
        PluginError: it fills such a slot.
    """
    if found.manifest is None or is_first_party(found) or found.id in allowed:
        return
    if note := opt_in_note(found.manifest):
        raise PluginError(f"it {note}", id="plugin-experimental-slot")


def opt_in_note(manifest: Manifest) -> str:
    """Say what a third party's plugin has to be opted in to; "" if it fills stable slots alone."""
    slots = [name for name in manifest.slots if name in EXPERIMENTAL]
    if not slots:
        return ""
    dated = ", ".join(f"{name} (since {EXPERIMENTAL[name]})" for name in slots)
    return (
        f"fills experimental slots: {dated}, which may change in any release; opt in with "
        f"--allow-experimental {manifest.id}"
    )
