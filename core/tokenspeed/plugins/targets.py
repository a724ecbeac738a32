"""`lazy("module:name")`: a loader that imports only when it is called."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.errors import plugin_code

if TYPE_CHECKING:
    from collections.abc import Callable


def resolve(target: str) -> Any:
    """Import `module:name` and return the object."""
    import importlib

    module, _, name = target.partition(":")
    with plugin_code():
        found: Any = importlib.import_module(module)
        for part in name.split(".") if name else ():
            found = getattr(found, part)
    return found


def lazy(target: str) -> Callable[[], Any]:
    """Return a `load` for an Offer or KernelOffer: imports `module:name` when called.

    Use it where the slot wants the named object itself (model, kernel), not a call of it.
    """

    def load() -> Any:
        return resolve(target)

    load.__qualname__ = f"lazy({target!r})"
    return load
