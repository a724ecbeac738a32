"""Finds installed plugins from metadata and manifests; imports nothing of them.

`distributions()` is walked, never `entry_points()`: that one hides the second of two distributions
with one name, and which of two plugins with one id runs must never depend on path order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed.errors import PluginError, shown
from tokenspeed.plugins.manifest import MANIFEST_NAME, Manifest, read_manifest
from tokenspeed.plugins.names import ID_RULE, is_id, is_target, printable

if TYPE_CHECKING:
    from collections.abc import Iterator

GROUP = "tokenspeed.plugins"


@dataclass(frozen=True, slots=True)
class FoundPlugin:
    """One installed plugin, as data.

    Args:
        id: entry-point name.
        distribution: normalised name of the wheel.
        version: of the wheel.
        target: entry-point value, `module:object`.
        path: its metadata folder.
        manifest: None when `problem` says why there is none.
        problem: why it cannot be loaded; "" when nothing is wrong so far.
        problem_id: the diagnostic of the problem.
        shadowed: metadata folders of the same wheel further down the path (layered environments).
    """

    id: str
    distribution: str
    version: str
    target: str
    path: str
    manifest: Manifest | None = None
    problem: str = ""
    problem_id: str = ""
    shadowed: tuple[str, ...] = ()

    @property
    def info(self) -> Path:
        """Its metadata folder, as a path."""
        return Path(self.path)


def find_planned(plugin_id: str, distribution_name: str) -> FoundPlugin:
    """Return one plugin by its distribution, as this process's path has it; no scan.

    What is missing comes back as a FoundPlugin of version "missing" with a problem.
    """
    for distribution in metadata.distributions(name=distribution_name):
        for found in _plugins_of(distribution):
            if found.id == plugin_id:
                return _with_manifest(found)
    return FoundPlugin(
        id=plugin_id,
        distribution=distribution_name,
        version="missing",
        target="",
        path="",
        problem=f"distribution {distribution_name} is not on this process's path; install it there",
        problem_id="plugin-unknown",
    )


def discover() -> dict[str, FoundPlugin]:
    """Return every installed plugin by id, sorted; ambiguous and broken ones carry a problem."""
    by_id: dict[str, list[FoundPlugin]] = {}
    for found in _scan():
        by_id.setdefault(found.id, []).append(found)
    return {plugin_id: _with_manifest(_one_of(by_id[plugin_id])) for plugin_id in sorted(by_id)}


def _scan() -> Iterator[FoundPlugin]:
    for distribution in metadata.distributions():
        yield from _plugins_of(distribution)


def _plugins_of(distribution: metadata.Distribution) -> Iterator[FoundPlugin]:
    # Reading one small file is cheap; METADATA is read only for plugins.
    text = _text_of(distribution, "entry_points.txt")
    if GROUP not in text:
        return
    name, version = _name_and_version(distribution)
    for entry, target in _entries(text):
        problem = _problem_of(entry, target)
        yield FoundPlugin(
            id=printable(entry),
            distribution=canonical_name(printable(name)),
            version=printable(version),
            target=target,
            path=str(getattr(distribution, "_path", distribution.locate_file(""))),
            problem=problem,
            problem_id="plugin-unlocatable" if problem else "",
        )


def _text_of(distribution: metadata.Distribution, name: str) -> str:
    """Read one file of the metadata; bytes that are no UTF-8 spoil their own line only."""
    try:
        return distribution.read_text(name) or ""
    except UnicodeDecodeError:
        path = getattr(distribution, "_path", None)
        return (path / name).read_text(encoding="utf-8", errors="replace") if path else ""


def _entries(text: str) -> Iterator[tuple[str, str]]:
    """Yield (name, target) of the group's lines; the parser of importlib trips over bad ones."""
    is_ours = False
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            is_ours = line == f"[{GROUP}]"
        elif is_ours and line and not line.startswith(("#", ";")):
            name, _, target = line.partition("=")
            yield name.strip(), target.strip()


def _problem_of(entry: str, target: str) -> str:
    if not is_id(entry):
        return f"the name of its entry point is {shown(entry)}; allowed: {ID_RULE}"
    if not is_target(target):
        return f"entry point {entry} is {shown(target)}; PACKAGE:OBJECT is needed"
    return ""


def _name_and_version(distribution: metadata.Distribution) -> tuple[str, str]:
    """Read two header lines; parsing the whole METADATA as mail costs milliseconds a wheel."""
    text = _text_of(distribution, "METADATA") or _text_of(distribution, "PKG-INFO")
    head = text.partition("\n\n")[0]
    fields = dict(line.split(": ", 1) for line in head.splitlines() if ": " in line)
    return fields.get("Name", "?"), fields.get("Version", "0")


def canonical_name(name: str) -> str:
    """Normalise a distribution name as package indexes do."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _one_of(twins: list[FoundPlugin]) -> FoundPlugin:
    first = twins[0]
    unique = {twin.path: twin for twin in twins}
    if len(unique) == 1 and len(twins) == 1:
        return first
    if _is_layered(list(unique.values())):
        return replace(first, shadowed=tuple(path for path in unique if path != first.path))
    # By path, so that it reads alike whoever was installed first.
    twins = sorted(twins, key=lambda twin: (twin.path, twin.target))
    paths = "; ".join(f"{twin.distribution} {twin.version} in {twin.path}" for twin in twins)
    return replace(
        twins[0],
        problem=f"plugin id {twins[0].id!r} is claimed {len(twins)} times: {paths}; one "
        "distribution may claim an id: uninstall the others",
        problem_id="plugin-duplicate",
    )


def _is_layered(twins: list[FoundPlugin]) -> bool:
    """Say whether these are one wheel seen through layered environments.

    Equal wheel, version and target in *different* folders: Python imports one package whichever
    metadata is read. Two entries in one folder, and an egg-info anywhere, are a stale leftover and
    ambiguous.
    """
    if any(twin.path.endswith(".egg-info") for twin in twins):
        return False
    same = {(twin.distribution, twin.version, twin.target) for twin in twins}
    return len(same) == 1 and len({Path(twin.path).parent for twin in twins}) == len(twins)


def _with_manifest(found: FoundPlugin) -> FoundPlugin:
    if found.problem:
        return found
    try:
        manifest = read_manifest(_manifest_path(found))
    except PluginError as error:
        return replace(found, problem=error.message, problem_id=error.id)
    if manifest.id != found.id:
        return replace(
            found,
            problem=f"manifest id {manifest.id!r} differs from entry point {found.id!r}; "
            "make them equal",
            problem_id="manifest-id-differs",
        )
    return replace(found, manifest=manifest)


def _manifest_path(found: FoundPlugin) -> Path:
    package = found.target.partition(":")[0].partition(".")[0]
    try:
        spec = find_spec(package)
    except (ImportError, ValueError) as error:
        raise PluginError(
            f"package {package} cannot be located: {error}; reinstall", id="plugin-unlocatable"
        ) from error
    locations = spec.submodule_search_locations if spec is not None else None
    if not locations:
        raise PluginError(
            f"package {package} of entry point {found.target!r} is not importable; reinstall "
            f"{found.distribution}",
            id="plugin-unlocatable",
        )
    # An editable package with a native extension lies in two folders: the built one comes first.
    paths = [Path(location) / MANIFEST_NAME for location in locations]
    return next((path for path in paths if path.is_file()), paths[0])
