"""Decides from data alone whether a plugin fits this core and this environment."""

from __future__ import annotations

import ast
import platform
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed.errors import PluginError
from tokenspeed.plugins.slots import API_VERSION, live_slot
from tokenspeed.plugins.versions import release, satisfies

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.plugins.manifest import Manifest


def check_compatible(manifest: Manifest) -> None:
    """Compare API range, slot versions and ABI facts.

    Raises:
        PluginError: the first thing that does not fit, with both versions and the fix.
    """
    if not satisfies(API_VERSION, manifest.api):
        raise PluginError(
            f"needs plugin API {manifest.api}, this tokenspeed has {API_VERSION}; install a "
            "version of the plugin made for it",
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
    have = live_slot(name).version
    wanted_major, _, wanted_minor = built_against.partition(".")
    major, _, minor = have.partition(".")
    if wanted_major != major:
        raise PluginError(
            f"was built against slot {name} {built_against}, this tokenspeed takes {major}.x; "
            "install a version of the plugin made for it",
            id="slot-version-mismatch",
        )
    if int(wanted_minor) > int(minor):
        raise PluginError(
            f"was built against slot {name} {built_against}, this tokenspeed has {have}; "
            "upgrade tokenspeed",
            id="slot-version-mismatch",
        )


@lru_cache(maxsize=1)
def environment_facts() -> Mapping[str, str]:
    """Return version facts by opaque name: python, libc, torch, and what torch was built for.

    torch's `version.py` is read as text: its string constants are facts under their own names.
    """
    facts = {"python": platform.python_version()}
    libc, libc_version = platform.libc_ver()
    if libc:
        facts[libc] = libc_version
    facts.update(_torch_facts())
    return facts


def _torch_facts() -> dict[str, str]:
    spec = find_spec("torch")
    locations = spec.submodule_search_locations if spec is not None else None
    version_file = Path(locations[0]) / "version.py" if locations else None
    if version_file is None or not version_file.is_file():
        return {}
    facts: dict[str, str] = {}
    for node in ast.parse(version_file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            facts |= _version_constant(node.targets[0].id, node.value)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            facts |= _version_constant(node.target.id, node.value)
    if "__version__" in facts:
        facts["torch"] = facts.pop("__version__")
    return facts


def _version_constant(name: str, value: ast.expr | None) -> dict[str, str]:
    if not isinstance(value, ast.Constant) or not isinstance(value.value, str):
        return {}
    try:
        release(value.value)
    except ValueError:
        return {}
    return {name: value.value}
