"""Triton's interpreter without the work that it repeats at every call of a helper.

A call of one jit function from another replaces some 500 functions of triton.language again, around
those that the launch has replaced already; half of the time goes there. Here they are replaced once
a launch.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter

_replaced: set[ModuleType] = set()


def replace_once() -> None:
    """Make nested calls reuse what their launch has replaced."""
    replace = interpreter._patch_lang

    def replace_missing(fn: Any) -> Any:
        held = (value for value in fn.__globals__.values() if isinstance(value, ModuleType))
        languages = {module for module in held if module in (tl, tl.core)}
        if languages <= _replaced:
            return interpreter._LangPatchScope()
        scope = replace(fn)
        restore = scope.restore

        def restore_and_forget() -> None:
            restore()
            _replaced.difference_update(languages)

        scope.restore = restore_and_forget
        _replaced.update(languages)
        return scope

    interpreter._patch_lang = replace_missing
