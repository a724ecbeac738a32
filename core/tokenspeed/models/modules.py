"""Model files that a user names (`--model-module my_pkg.my_model`), offered like those of plugins.

Naming a module is what trusts it, unless the operator or a lock file says no. Its plugin id is the
module's name and its version the digest of its file, so that processes that read different files
differ in their plan.
"""

from __future__ import annotations

import hashlib
import importlib
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tokenspeed.contracts.registration import Offer
from tokenspeed.errors import PluginError, plugin_code, shown, told
from tokenspeed.models.registry import problem_of
from tokenspeed.plugins.names import is_name
from tokenspeed.plugins.operator_file import read_operator_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.machinery import ModuleSpec

    from tokenspeed.plugins.registry import Registry

ENTRY = "EntryClass"


def check_model_modules(modules: Iterable[str], *, lock: str = "") -> None:
    """Refuse modules that may not load or are not there; imports nothing, no package above them.

    Args:
        lock: lock file that the start is held to; "": none, unless the operator has one.
    Raises:
        PluginError: the operator forbids the module, a lock file is in force, or it is not there.
    """
    names = tuple(modules)
    if not names:
        return
    rules = read_operator_file()
    for name in names:
        rules.check_allowed(name)
        if held := rules.lock or lock:
            raise PluginError(
                f"model module {name!r} is not covered by lock file {held}, which lists wheels; "
                "offer the model from a plugin and lock that, or start without the lock file",
                id="plugin-not-locked",
            )
        _spec_of(name)


def register_model_modules(registry: Registry, modules: Iterable[str], *, lock: str = "") -> None:
    """Import each module and offer its EntryClass.

    Raises:
        PluginError: a module may not load or is not there, cannot be imported, or has no usable
            EntryClass.
    """
    names = tuple(dict.fromkeys(modules))
    check_model_modules(names, lock=lock)
    taken = {status.id for status in registry.plugins}
    for name in names:
        if name in taken:
            raise PluginError(
                f"model module {name!r} has the name of a plugin, and nobody could tell whose "
                f"models are whose; plugins are {', '.join(sorted(taken))}; rename the module",
                id="model-module-failed",
            )
        version = _version(_spec_of(name))
        entry = _entry_class(name)
        served = _architectures(name, entry)
        offer = Offer(
            "model", served[0], lambda entry=entry: entry, facts={"architectures": served}
        )
        registry.commit(name, version, [("model", offer)])


def _spec_of(name: str) -> ModuleSpec:
    """Find a module through its packages without importing them."""
    top, *rest = name.split(".")
    try:
        spec = find_spec(top) if top else None
        for index, _ in enumerate(rest, start=2):
            places = spec.submodule_search_locations if spec is not None else None
            full = ".".join([top, *rest][:index])
            spec = PathFinder.find_spec(full, list(places)) if places is not None else None
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        raise PluginError(
            f"model module {name!r} is not found; a dotted name such as my_pkg.my_model on the "
            f"path is needed; {_way_to(name)}",
            id="model-module-missing",
        )
    return spec


def _way_to(name: str) -> str:
    """Say how a module gets onto the path; of a file that is there, with its own name."""
    file = Path(name)
    if file.suffix != ".py" or not file.is_file():
        return (
            "install its package (pip install -e FOLDER), put its folder on PYTHONPATH, or correct "
            "the name"
        )
    return f"for this file: PYTHONPATH={file.resolve().parent} and --model-module {file.stem}"


def _version(spec: ModuleSpec) -> str:
    if not spec.origin or not Path(spec.origin).is_file():
        return "0"
    return "sha256-" + hashlib.sha256(Path(spec.origin).read_bytes()).hexdigest()[:12]


def _entry_class(name: str) -> object:
    try:
        with plugin_code():
            module = importlib.import_module(name)
            has_entry = hasattr(module, ENTRY)
    except Exception as error:
        raise PluginError(
            f"model module {name} cannot be imported: {told(error)}; correct the file, or start "
            "without --model-module",
            id="model-module-failed",
        ) from error
    if not has_entry:
        raise PluginError(
            f"model module {name} has no {ENTRY}; end the file with `{ENTRY} = YourForCausalLM`",
            id="model-module-failed",
        )
    entry: object = getattr(module, ENTRY)
    return entry


def _architectures(name: str, entry: object) -> tuple[str, ...]:
    try:
        with plugin_code():
            names = getattr(entry, "architectures", ())
            problem = problem_of(entry, names[0]) if names else ""
    except Exception as error:
        raise PluginError(
            f"model module {name}: {ENTRY}.architectures raised {told(error)}; write a tuple",
            id="model-module-failed",
        ) from error
    if not isinstance(names, tuple) or not names or not all(map(is_name, names)):
        raise PluginError(
            f"model module {name}: {ENTRY}.architectures is {shown(names)}, a tuple of names is "
            "needed; write those that stand in config.json",
            id="model-module-failed",
        )
    if problem:
        raise PluginError(f"model module {name}: {ENTRY} {problem}", id="model-module-failed")
    return names
