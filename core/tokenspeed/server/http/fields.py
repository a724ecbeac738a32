"""Which request fields are supported, inert, or refused: by the tables of each API's schemas.

A field is one of: a field of the schema (honoured), inert (accepted, changes nothing by its own
meaning), or known but not built yet (accepted only at a neutral value). Anything else is unknown.
`null` is neutral everywhere.
"""

from __future__ import annotations

import difflib
import itertools
import json
from typing import TYPE_CHECKING, Any

from tokenspeed.errors import RequestError
from tokenspeed.server.http.numbers import is_number

if TYPE_CHECKING:
    from collections.abc import Mapping

_MAX_NAME_CHARS = 64
"""A longer unknown name is no typing mistake: none like it is looked for, and answers cut it."""
_MAX_SHOWN_BITS = 256


def known_fields(
    body: Mapping[str, Any],
    supported: frozenset[str],
    *,
    neutral: Mapping[str, tuple[Any, ...]],
    inert: Mapping[str, str],
    prefix: str = "",
) -> dict[str, Any]:
    """Return the supported fields that were given, without nulls.

    Raises:
        RequestError: a field is unknown, or not built yet and not neutral; names it.
    """
    given: dict[str, Any] = {}
    for name, value in body.items():
        if name in supported:
            if value is not None:
                given[name] = value
        elif name in neutral:
            _require_neutral(prefix + name, value, neutral[name])
        elif name not in inert:
            raise _unknown(name, supported | neutral.keys() | inert.keys(), prefix)
    return given


def _require_neutral(name: str, value: Any, allowed: tuple[Any, ...]) -> None:
    if value is None or any(type(value) is type(item) and value == item for item in allowed):
        return
    if is_number(value) and any(is_number(item) and value == item for item in allowed):
        return
    shown = ", ".join(["null", *(shorten(item) for item in allowed)])
    raise RequestError(
        f"{name} is not supported in this version: got {shorten(value)}, "
        f"allowed is {shown}; omit it",
        param=name,
        code="unsupported_parameter",
    )


def _unknown(name: str, names: frozenset[str], prefix: str) -> RequestError:
    near = difflib.get_close_matches(name, names, n=1) if len(name) <= _MAX_NAME_CHARS else []
    hint = f"did you mean {near[0]!r}?" if near else "remove it"
    return RequestError(
        f"unknown parameter {shorten(prefix + name)}: it is not supported in this version; {hint}",
        param=prefix + name[:_MAX_NAME_CHARS],
        code="unknown_parameter",
    )


def shorten(value: Any, limit: int = 80) -> str:
    """Return a value as an error message shows it: JSON-like, short, whatever its size or depth."""
    text = _shown(value, depth=3)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _shown(value: Any, depth: int) -> str:
    if isinstance(value, str):
        return json.dumps(value[:200])
    if isinstance(value, int) and value.bit_length() > _MAX_SHOWN_BITS:
        return f"a number of about {value.bit_length() * 3 // 10} digits"
    if not isinstance(value, list | dict):
        return json.dumps(value, default=str)
    if depth == 0:
        return "..."
    if isinstance(value, list):
        return f"[{', '.join(_shown(item, depth - 1) for item in value[:20])}]"
    items = itertools.islice(value.items(), 20)
    pairs = (f"{_shown(key, 0)}: {_shown(item, depth - 1)}" for key, item in items)
    return f"{{{', '.join(pairs)}}}"
