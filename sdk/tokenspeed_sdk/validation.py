"""Static checks of a plugin's project folder: metadata, manifest and hooks; nothing is imported."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import reason_of
from tokenspeed.plugins.compatibility import check_compatible, opt_in_note
from tokenspeed.plugins.discovery import GROUP
from tokenspeed.plugins.manifest import MANIFEST_NAME, Manifest, read_manifest
from tokenspeed.plugins.nearest import suggestion
from tokenspeed.plugins.slots import SLOT_OF_HOOK
from tokenspeed.plugins.toml_file import read_toml
from tokenspeed_sdk import ConfigError, PluginError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def validate_folder(folder: Path) -> list[PluginError]:
    """Return what is wrong with the plugins that a project folder declares.

    Raises:
        ConfigError: the folder has no readable pyproject.toml.
    """
    entries = _entries_of(folder)
    if not isinstance(entries, dict) or not entries:
        return [_problem(f'pyproject.toml has no [project.entry-points."{GROUP}"]; add the plugin')]
    problems: list[PluginError] = []
    for plugin_id, target in entries.items():
        problems += _problems_of(folder, str(plugin_id), str(target))
    return problems


def opt_ins(folder: Path) -> list[str]:
    """Say what whoever serves has to opt in to, of plugins without a problem."""
    packages = [_package_of(folder, str(target)) for target in _entries_of(folder).values()]
    manifests = [read_manifest(path / MANIFEST_NAME) for path in packages if path is not None]
    return [note for manifest in manifests if (note := opt_in_note(manifest))]


def _entries_of(folder: Path) -> Any:
    """Return what pyproject.toml has for the entry points of plugins: plugin id -> target."""
    try:
        entries: Any = read_toml(folder / "pyproject.toml")
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{folder} is no project: pyproject.toml cannot be read ({reason_of(error)}); give the "
            "folder that has it"
        ) from error
    for name in ("project", "entry-points", GROUP):
        entries = entries.get(name) if isinstance(entries, dict) else None
    return entries


def _package_of(folder: Path, target: str) -> Path | None:
    """Return the folder of an entry point's package."""
    module = target.partition(":")[0]
    return next(
        (path for path in (folder / module, folder / "src" / module) if path.is_dir()), None
    )


def _problems_of(folder: Path, plugin_id: str, target: str) -> Iterator[PluginError]:
    package = _package_of(folder, target)
    if package is None or not target.partition(":")[2]:
        yield _problem(f"entry point {plugin_id} = {target!r} is no PACKAGE:OBJECT of {folder}")
        return
    try:
        manifest = read_manifest(package / MANIFEST_NAME)
        if manifest.id != plugin_id:
            yield _problem(f"manifest id {manifest.id!r} differs from entry point {plugin_id!r}")
        check_compatible(manifest)
    except PluginError as error:
        yield error
        return
    yield from _hook_problems(package / "__init__.py", manifest)
    if not (package / "py.typed").is_file():
        yield _problem(f"{package.name} has no py.typed: its types are lost on whoever uses it")


def _hook_problems(path: Path, manifest: Manifest) -> Iterator[PluginError]:
    """Compare the hooks that the package's own module defines with the manifest's slots."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        yield _problem(f"{path} cannot be parsed: {error}")
        return
    hooks = {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef) and node.name.startswith("register_")
    }
    for hook in sorted(hooks - SLOT_OF_HOOK.keys()):
        yield PluginError(
            f"unknown hook {hook!r}; {suggestion(hook, SLOT_OF_HOOK)}", id="hook-unknown"
        )
    for hook in sorted(hooks & SLOT_OF_HOOK.keys()):
        if SLOT_OF_HOOK[hook] not in manifest.slots:
            yield _problem(f"{hook} offers for slot {SLOT_OF_HOOK[hook]}, which is not in [slots]")
    if hooks:
        filled = {SLOT_OF_HOOK[hook] for hook in hooks & SLOT_OF_HOOK.keys()}
        for slot in sorted(manifest.slots.keys() - filled):
            yield _problem(f"[slots] has {slot}, and no hook offers for it")


def _problem(message: str) -> PluginError:
    return PluginError(message, id="manifest-invalid")
