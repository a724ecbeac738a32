"""Values that a format writes without their types, such as <parameter=days>3</parameter>, to JSON.

The tool's schema says what a value is:
  a string only             the text as it stands
  no string                 JSON; Python's True, False and None are read too
  a string among others,    JSON of the other types if the whole text is such, else the string;
  or no schema              waits as long as it may still become JSON
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Protocol

from tokenspeed.parsers.json_text import CONSTANTS, escaped, read_json
from tokenspeed.parsers.source import BadCall, Source, UnfinishedCall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.parsers.source import Emit, Steps

STRING = "string"
ALL_TYPES = frozenset({STRING, "number", "integer", "boolean", "null", "object", "array"})
WORDS = {**CONSTANTS, "True": "true", "False": "false", "None": "null"}
_MAX_HEAD_CHARS = 64
"""Of a number or a word that a string may turn out to be."""
MAX_REFERENCES = 16
"""How deep types are looked for in a schema."""
_TYPE_OF = {bool: "boolean", int: "integer", float: "number", str: STRING, type(None): "null"}
_TYPE_OF |= {dict: "object", list: "array"}
_NUMBER_HEAD = re.compile(r"-?[0-9]*(\.[0-9]*)?([eE][-+]?[0-9]*)?")
_INTEGER_HEAD = re.compile(r"-?[0-9]*")


def types_of(schema: Any, root: Mapping[str, Any], depth: int = 0) -> frozenset[str]:
    """Return the JSON types that a schema takes; all where it does not say."""
    if not isinstance(schema, dict) or depth > MAX_REFERENCES:
        return ALL_TYPES
    found = _own_types(schema)
    if "$ref" in schema:
        found &= types_of(_target(schema["$ref"], root), root, depth + 1)
    for word in ("anyOf", "oneOf"):
        branches = schema.get(word)
        if isinstance(branches, list) and branches:
            found &= frozenset().union(*(types_of(item, root, depth + 1) for item in branches))
    for item in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
        found &= types_of(item, root, depth + 1)
    return found or ALL_TYPES


def _own_types(schema: Mapping[str, Any]) -> frozenset[str]:
    found = ALL_TYPES
    stated = schema.get("type")
    if stated is not None:
        named = stated if isinstance(stated, list) else [stated]
        found &= {name for name in named if isinstance(name, str)}
    values = schema["enum"] if isinstance(schema.get("enum"), list) else []
    values = [schema["const"]] if "const" in schema else values
    if values:
        kinds = {_TYPE_OF[type(value)] for value in values}
        found &= kinds | ({"number"} if "integer" in kinds else set())
    return found | {"null"} if schema.get("nullable") is True else found


def _target(reference: Any, root: Mapping[str, Any]) -> Any:
    """Return what "#/$defs/NAME" points at; None where nothing is."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    target: Any = root
    for part in reference[1:].split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        target = target.get(key) if isinstance(target, dict) else None
    return target


class Value(Protocol):
    """One value: told its text piece by piece, emits JSON."""

    def feed(self, text: str) -> None:
        """Take the next text."""
        ...

    def end(self) -> None:
        """Say that it is complete.

        Raises:
            BadCall: the text is no such value.
        """
        ...


def value_of(name: str, schema: Mapping[str, Any], emit: Emit) -> Value:
    """Return the reader of the argument `name` of a tool with this schema."""
    types = types_of(_property(name, schema), schema)
    if types == {STRING}:
        return StringValue(emit)
    if STRING not in types:
        return JsonValue(name, types, emit)
    return AnyValue(name, types, emit)


def _property(name: str, schema: Mapping[str, Any]) -> Any:
    named = schema.get("properties")
    if isinstance(named, dict) and name in named:
        return named[name]
    return schema.get("additionalProperties")


class StringValue:
    """Text as it stands."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._has_begun = False

    def feed(self, text: str) -> None:
        """Emit it, escaped."""
        self._emit(('"' if not self._has_begun else "") + escaped(text))
        self._has_begun = True

    def end(self) -> None:
        """Close the quotes."""
        self._emit('"' if self._has_begun else '""')


class JsonValue:
    """JSON, passed on while it comes; what is wrong with it is told at the end."""

    def __init__(self, name: str, types: frozenset[str], emit: Emit) -> None:
        self._name = name
        self._types = types
        self._emit = emit
        self._source = Source()
        self._steps: Steps[None] | None = self._read()
        self.error: str | None = None
        self._is_empty = True

    def feed(self, text: str) -> None:
        """Emit as much as is certain."""
        self._is_empty = self._is_empty and not text.strip()
        self._go_on(text)

    def end(self) -> None:
        """Emit the rest."""
        if self._is_empty and "null" in self._types:
            self._emit("null")
            return
        self._source.end()
        self._go_on("")
        if self.error is not None:
            raise BadCall(f"the argument {self._name!r} is no JSON value: {self.error}")

    def _go_on(self, text: str) -> None:
        if self._steps is None:
            return
        self._source.feed(text)
        try:
            next(self._steps)
        except StopIteration:
            self._steps = None
        except BadCall as bad:
            self._steps = None
            self.error = "it ends too early" if isinstance(bad, UnfinishedCall) else str(bad)

    def _read(self) -> Steps[None]:
        yield from self._source.skip_space()
        yield from read_json(self._source, self._emit, constants=WORDS)
        rest = yield from self._source.skip_space()
        if rest:
            raise BadCall(f"{rest!r} follows it")


class AnyValue:
    """JSON of some types, or else a string: holds back what may still be JSON."""

    def __init__(self, name: str, types: frozenset[str], emit: Emit) -> None:
        self._emit = emit
        self._types = types
        self._json: list[str] = []
        self._reader = JsonValue(name, types, self._json.append)
        self._string: StringValue | None = None
        self._held: list[str] = []
        self._head = ""

    def feed(self, text: str) -> None:
        """Emit it if it is sure to be a string."""
        if self._string is not None:
            self._string.feed(text)
            return
        self._held.append(text)
        if len(self._head) <= _MAX_HEAD_CHARS:
            self._head = (self._head + text).lstrip()
        self._reader.feed(text)
        if self._reader.error is not None or not _may_be(self._head, self._types):
            self._be_string()

    def end(self) -> None:
        """Emit the JSON, or the string that it is after all."""
        if self._string is None and self._is_json():
            self._emit("".join(self._json))
        else:
            (self._string or self._be_string()).end()

    def _is_json(self) -> bool:
        try:
            self._reader.end()
        except BadCall:
            return False
        return bool(self._head)

    def _be_string(self) -> StringValue:
        self._string = StringValue(self._emit)
        self._string.feed("".join(self._held))
        self._held.clear()
        return self._string


def _may_be(head: str, types: frozenset[str]) -> bool:
    """Say whether a text that begins so may be JSON of one of the types other than a string."""
    if head[:1] in ("{", "["):
        return ("object" if head[0] == "{" else "array") in types
    head = head.rstrip()
    if not types.isdisjoint({"number", "integer"}):
        pattern = _NUMBER_HEAD if "number" in types else _INTEGER_HEAD
        if pattern.fullmatch(head):
            return len(head) <= _MAX_HEAD_CHARS
    words = {word for word, json in WORDS.items() if json == "null" and "null" in types}
    if "boolean" in types:
        words |= {word for word, json in WORDS.items() if json != "null"}
    return any(word.startswith(head) for word in words)
