"""Arguments as pairs of tags, which several formats share: reads them into one JSON object.

A closing tag of a value that the model skipped is implied by the next tag, where that begins a
line: inside a line it is text.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenspeed.parsers.source import BadCall, Marks, UnfinishedCall
from tokenspeed.parsers.values import value_of

if TYPE_CHECKING:
    from tokenspeed.contracts.conversation import Tool
    from tokenspeed.parsers.calls import Calls
    from tokenspeed.parsers.source import Source, Steps
    from tokenspeed.parsers.values import Value

_NAME = re.compile(r"[^<>\"\r\n]+")


@dataclass(frozen=True, slots=True)
class Tags:
    """How a format writes the arguments of one call.

    Args:
        key: before the name of an argument.
        key_end: after it.
        value: before the value, where that has a tag of its own.
        value_end: after it.
        ends: each ends the arguments.
        newline: one newline after `key_end` and one before `value_end` are the format's.
    """

    key: str
    key_end: str
    value_end: str
    ends: tuple[str, ...]
    value: str = ""
    newline: bool = False


class TaggedArguments:
    """Reads the arguments of calls in one format."""

    def __init__(self, tags: Tags) -> None:
        self._tags = tags
        implied = (f"\n{mark}" for mark in (tags.key, *tags.ends))
        self._value_marks = Marks(tags.value_end, *implied)

    def read(self, source: Source, calls: Calls, tool: Tool) -> Steps[str]:
        """Read arguments to their end; return the mark that ended them."""
        calls.arguments("{")
        names: set[str] = set()
        mark = yield from self._next_mark(source)
        while mark == self._tags.key:
            calls.arguments(", " if names else "")
            name = yield from self._read_name(source, calls, names)
            mark = yield from self._read_value(source, calls, tool, name)
            if mark == self._tags.value_end:
                mark = yield from self._next_mark(source)
        calls.arguments("}")
        return mark

    def _next_mark(self, source: Source) -> Steps[str]:
        yield from source.skip_space()
        return (yield from source.expect(self._tags.key, *self._tags.ends))

    def _read_name(self, source: Source, calls: Calls, names: set[str]) -> Steps[str]:
        name = yield from read_name(source, self._tags.key_end)
        if name in names:
            raise BadCall(f"the argument {name!r} is given twice")
        names.add(name)
        calls.arguments(f"{json.dumps(name, ensure_ascii=False)}: ")
        if self._tags.value:
            yield from source.skip_space()
            yield from source.expect(self._tags.value)
        return name

    def _read_value(self, source: Source, calls: Calls, tool: Tool, name: str) -> Steps[str]:
        """Read a value and the mark that ends it, which is returned without its newline."""
        value = value_of(name, tool.parameters, calls.arguments)
        text = _Inner(value) if self._tags.newline else value
        mark = yield from source.until(self._value_marks, text.feed)
        if not mark:
            raise UnfinishedCall
        text.end()
        return mark.lstrip("\n")


class _Inner:
    """A value without the newlines that the format writes around it."""

    def __init__(self, value: Value) -> None:
        self._value = value
        self._is_first = True
        self._held = ""

    def feed(self, text: str) -> None:
        """Pass on all but a newline at the very beginning and at the end so far."""
        if self._is_first:
            self._is_first = False
            text = text.removeprefix("\n")
        text = self._held + text
        solid = text.removesuffix("\n")
        self._held = text[len(solid) :]
        if solid:
            self._value.feed(solid)

    def end(self) -> None:
        """End the value without the newline that is held back."""
        self._value.end()


def read_name(source: Source, end: str) -> Steps[str]:
    """Read the name of an argument or of a tool, and the text that must follow it."""
    name = yield from source.word(_NAME)
    yield from source.expect(end)
    return name.strip()
