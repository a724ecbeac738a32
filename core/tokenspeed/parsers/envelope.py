"""A call as one JSON object, which most formats share: {"name": ..., "arguments": {...}}.

"parameters" is read as "arguments"; other keys are skipped. Arguments that stand before the name
wait for it.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenspeed.parsers.json_text import read_arguments, read_json, read_string
from tokenspeed.parsers.source import BadCall

if TYPE_CHECKING:
    from tokenspeed.parsers.calls import Calls
    from tokenspeed.parsers.source import Source, Steps

NAME_KEYS = ("name",)
MAX_TEXT_CHARS = 1024
ARGUMENT_KEYS = ("arguments", "parameters")


def read_call_object(source: Source, calls: Calls) -> Steps[None]:
    """Read one call; the next character is its brace, or it is bad.

    Raises:
        BadCall: it is no such object, or names no tool.
    """
    yield from _expect(source, "{")
    has_name, has_arguments = False, False
    early: list[str] = []
    while (yield from _has_key(source)):
        key = yield from read_text(source)
        yield from _expect(source, ":")
        if key in NAME_KEYS:
            _once(key, has_name)
            has_name = True
            yield from source.skip_space()
            calls.begin((yield from read_text(source)))
            if has_arguments:
                calls.arguments("".join(early))
        elif key in ARGUMENT_KEYS:
            _once(key, has_arguments)
            has_arguments = True
            yield from read_arguments(source, calls.arguments if has_name else early.append)
        else:
            yield from read_json(source, lambda _: None)
        char = yield from source.skip_space()
        if char != ",":
            break
        yield from source.take(1)
    yield from _expect(source, "}")
    if not has_name:
        raise BadCall("the call has no name")
    if not has_arguments:
        calls.arguments("{}")
    calls.end()


def _has_key(source: Source) -> Steps[bool]:
    return (yield from source.skip_space()) != "}"


def _once(key: str, is_repeated: bool) -> None:
    if is_repeated:
        raise BadCall(f"the call has {key!r} twice")


def _expect(source: Source, wanted: str) -> Steps[None]:
    yield from source.skip_space()
    yield from source.expect(wanted)


def read_text(source: Source) -> Steps[str]:
    """Read a JSON string and return what it means.

    Raises:
        BadCall: it is longer than any name or key.
    """
    parts: list[str] = []
    left = MAX_TEXT_CHARS

    def collect(text: str) -> None:
        nonlocal left
        left -= len(text)
        if left >= 0:
            parts.append(text)

    yield from read_string(source, collect)
    if left < 0:
        raise BadCall(f"a name or key is longer than {MAX_TEXT_CHARS} characters")
    text: str = json.loads("".join(parts))
    return text
