"""Paths of modules in a model, such as "layers.3.attention.qkv": attributes, indices and keys.

The same path finds the same layer in every instance of a model class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_SKIPPED = {"config", "context", "_config", "_context", "_recorder"}


def paths_of(model: object, modules: Iterable[object]) -> dict[int, str]:
    """Return id of module -> its first path, for those that can be reached from the model."""
    wanted = {id(module) for module in modules}
    found: dict[int, str] = {}
    seen = {id(model)}
    todo = [("", model)]
    while todo:
        path, owner = todo.pop()
        children = []
        for name, child in _children(owner):
            if id(child) in seen:
                continue
            seen.add(id(child))
            own_path = f"{path}.{name}" if path else name
            if id(child) in wanted:
                found[id(child)] = own_path
            children.append((own_path, child))
        todo += reversed(children)
    return found


def module_at(model: object, path: str) -> Any:
    """Return what stands at a path; the last name may be a method's.

    Raises:
        AttributeError, LookupError: nothing does.
    """
    found = model
    for name in path.split("."):
        if isinstance(found, list | tuple):
            found = found[int(name)]
        elif isinstance(found, dict):
            found = found[name]
        else:
            found = getattr(found, name)
    return found


def _children(owner: object) -> Iterator[tuple[str, object]]:
    """Yield (name, object) of what may be or hold a module."""
    if isinstance(owner, list | tuple):
        items: Iterable[tuple[str, object]] = ((str(n), child) for n, child in enumerate(owner))
    elif isinstance(owner, dict):
        items = ((name, child) for name, child in owner.items() if isinstance(name, str))
    else:
        items = ((name, child) for name, child in vars(owner).items() if name not in _SKIPPED)
    for name, child in items:
        if (hasattr(child, "__dict__") and not isinstance(child, type)) or _holds(child):
            yield name, child


def _holds(child: object) -> bool:
    return isinstance(child, list | tuple | dict) and not isinstance(child, str)
