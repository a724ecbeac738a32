"""What a plugin must leave as it found it: a picture of the process, and what changed between two.

The core's own objects are compared by identity, so that a look-alike of a function is seen.
Submodules that an import binds to their package are no change.
"""

from __future__ import annotations

import builtins
import importlib
import logging
import os
import pkgutil
import signal
import sys
import threading
import warnings
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOMS = ("contracts", "config", "plugins", "kernels", "scheduler", "tokenizer")
"""Rooms of the core that are imported before the picture, so that a change of theirs is seen."""
MAX_SHOWN = 5
_SIGNALS = sorted(signal.valid_signals())


def import_core() -> None:
    """Import what is watched; no torch comes with it."""
    for room in ROOMS:
        package = importlib.import_module(f"tokenspeed.{room}")
        for module in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            if not module.name.endswith("_child"):
                importlib.import_module(module.name)


@dataclass(frozen=True, slots=True)
class Picture:
    """What is watched.

    Args:
        values: name -> value.
        attributes: module -> dotted name below it -> identity of the value.
    """

    values: Mapping[str, object]
    attributes: Mapping[str, Mapping[str, int]]


def picture() -> Picture:
    """Return what there is now."""
    values: dict[str, object] = {
        "sys.path": tuple(sys.path),
        "sys.meta_path": tuple(map(id, sys.meta_path)),
        "sys.path_hooks": tuple(map(id, sys.path_hooks)),
        "the working directory": os.getcwd(),
        "the umask": _umask(),
        "the threads": tuple(sorted(thread.name for thread in threading.enumerate())),
        "the warning filters": tuple(map(str, warnings.filters)),
        "the root logger": (logging.root.level, *map(str, logging.root.handlers)),
        **{f"environment variable {name}": value for name, value in os.environ.items()},
        **{f"the handler of {number!r}": str(signal.getsignal(number)) for number in _SIGNALS},
    }
    watched = [
        builtins,
        os,
        sys,
        *(sys.modules[name] for name in sorted(sys.modules) if _is_core(name)),
    ]
    return Picture(values, {module.__name__: dict(_attributes(module)) for module in watched})


def changes(before: Picture, after: Picture) -> list[str]:
    """Return a line for each difference; modules that came later are nobody's change."""
    found = _differences(before.values, after.values)
    for module, attributes in before.attributes.items():
        now = after.attributes.get(module, {})
        found += [f"attribute {module}.{line}" for line in _differences(attributes, now)]
    return found


def _differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    found = []
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            found.append(f"{name} is gone")
        elif name not in before:
            found.append(f"{name} is new")
        elif before[name] != after[name]:
            found.append(f"{name} {_difference(before[name], after[name])}")
    return found


def _difference(before: object, after: object) -> str:
    if isinstance(before, tuple) and isinstance(after, tuple):
        added = [str(item) for item in after if item not in before][:MAX_SHOWN]
        removed = [str(item) for item in before if item not in after][:MAX_SHOWN]
        return f"changed: added {added}, removed {removed}"
    return "was replaced" if isinstance(before, int) else f"was {before!r}, is {after!r}"


def _attributes(module: ModuleType) -> Iterator[tuple[str, int]]:
    """Yield dotted name and identity of a module's attributes and of those of its classes."""
    for name, value in list(vars(module).items()):
        if isinstance(value, ModuleType) or name.startswith("__") or name in _OF_THE_PROCESS:
            continue
        yield name, id(value)
        if isinstance(value, type) and value.__module__ == module.__name__:
            for key, item in list(vars(value).items()):
                if key not in _MADE_BY_PYTHON:
                    yield f"{name}.{key}", id(item)


_OF_THE_PROCESS = {"_", "last_exc", "last_type", "last_value", "last_traceback"}
_MADE_BY_PYTHON = {
    "__dict__",
    "__weakref__",
    "__annotations__",
    "_abc_impl",
    "__subclasshook__",
    "__parameters__",
    "__protocol_attrs__",
    "__non_callable_proto_members__",
}


def _is_core(name: str) -> bool:
    return name.partition(".")[0] in {"tokenspeed", "tokenspeed_sdk"}


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
