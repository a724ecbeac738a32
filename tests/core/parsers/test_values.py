"""Values without types are read by the schema; JSON and Python literals as their own readers do."""

from __future__ import annotations

import ast
import json
import random
from typing import TYPE_CHECKING, Any

import pytest

from tokenspeed.parsers.json_text import read_json
from tokenspeed.parsers.python_text import read_python
from tokenspeed.parsers.source import BadCall, Source
from tokenspeed.parsers.values import types_of, value_of

if TYPE_CHECKING:
    from collections.abc import Callable

REFUSED = object()


def read_value(text: str, schema: Any, size: int = 1) -> Any:
    """Return what a value means, fed in pieces of one size."""
    emitted: list[str] = []
    root = {"properties": {"x": schema}, "$defs": {"id": {"type": "integer"}}}
    value = value_of("x", root, emitted.append)
    for at in range(0, len(text), size):
        value.feed(text[at : at + size])
    try:
        value.end()
    except BadCall:
        return REFUSED
    return json.loads("".join(emitted))


STRING = {"type": "string"}
EITHER = {"type": ["string", "integer", "null"]}
CASES = [
    ("5", STRING, "5"),
    (' "a"\n', STRING, ' "a"\n'),
    ("", STRING, ""),
    ("5", {"type": "integer"}, 5),
    (" 5 ", {"type": "integer"}, 5),
    ("five", {"type": "integer"}, REFUSED),
    ("5 apples", {"type": "integer"}, REFUSED),
    ("", {"type": "integer"}, REFUSED),
    ("", {"type": ["integer", "null"]}, None),
    ("True", {"type": "boolean"}, True),
    ("none", {"type": "boolean"}, REFUSED),
    ("None", {"type": "integer", "nullable": True}, None),
    ('{"a": [1, 2]}', {"type": "object"}, {"a": [1, 2]}),
    ("{'a': 1}", {"type": "object"}, REFUSED),
    ("[1, 2", {"type": "array"}, REFUSED),
    ("5", EITHER, 5),
    ("5.5", EITHER, "5.5"),
    ("5.5", {"type": ["string", "number"]}, 5.5),
    ("2024-01-02", EITHER, "2024-01-02"),
    ("null", EITHER, None),
    ("nullable", EITHER, "nullable"),
    ("true", EITHER, "true"),
    ('{"a": 1}', EITHER, '{"a": 1}'),
    ("", EITHER, ""),
    ("5", {"$ref": "#/$defs/id"}, 5),
    ("x", {"$ref": "#/$defs/id"}, REFUSED),
    ("5", {"$ref": "#/$defs/nothing"}, 5),
    ("5", {"enum": ["5", "6"]}, "5"),
    ("5", {"enum": [5, 6]}, 5),
    ("5", {"const": "5"}, "5"),
    ("5", {"anyOf": [{"type": "string"}, {"type": "null"}]}, "5"),
    ("5", {"allOf": [{"type": "string"}, {"minLength": 1}]}, "5"),
    ("5", {}, 5),
    ('{"a": 1}', {}, {"a": 1}),
    ("{a}", {}, "{a}"),
    ("word", None, "word"),
]


@pytest.mark.parametrize(("text", "schema", "expected"), CASES)
def test_the_schema_says_what_a_value_is(text: str, schema: Any, expected: Any) -> None:
    for size in (1, 2, 3, 100):
        found = read_value(text, schema, size)
        assert (found, type(found)) == (expected, type(expected))


def test_a_schema_that_refers_to_itself_ends() -> None:
    schema = {"$ref": "#/$defs/a"}
    root = {"$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "string"}]}}}
    assert "string" in types_of(schema, root)


def read_all(read: Callable[..., Any], text: str) -> Any:
    """Return what a reader makes of a text fed by characters; REFUSED where it is no value."""
    source, emitted = Source(), []

    def script() -> Any:
        yield from read(source, emitted.append)
        if (yield from source.skip_space()):
            raise BadCall("more")

    steps = script()
    try:
        for char in text:
            source.feed(char)
            next(steps)
        source.end()
        next(steps)
    except StopIteration:
        return json.loads("".join(emitted))
    except BadCall:
        return REFUSED
    raise AssertionError("the reader waits after the end")


SEEDS = [
    '{"a": [1, -2.5e+3, "x\\"\\u00e9\\n", {"b": {}}, [], true, false, null], "c": 0}',
    '"text"',
    "[[[]], {}]",
    "-0.0e-1",
]
PYTHON_SEEDS = [
    "{'a': [1, -2.5e3, 'x\\'\\x41\\n', (1, 2), ()], \"b\": None, 'c': True}",
    "['it''s', \"q\"]",
    "0x1F",
]


def changed(seeds: list[str], alphabet: str, count: int) -> list[str]:
    """Return texts with a few characters replaced, added or removed."""
    chance = random.Random(7)
    texts = list(seeds)
    for _ in range(count):
        text = chance.choice(seeds)
        for _ in range(chance.choice((1, 1, 2, 4))):
            at = chance.randrange(len(text) + 1)
            text = text[:at] + chance.choice((*alphabet, "")) + text[at + chance.choice((0, 1)) :]
        texts.append(text)
    return texts


def test_json_is_read_as_the_standard_library_reads_it() -> None:
    accepted = 0
    for text in changed(SEEDS, '{}[]",:0123eE+-.truefalsn\\u ', 3000):
        try:
            expected = json.loads(text, parse_constant=lambda _: 1 / 0)
        except (ValueError, ZeroDivisionError):
            expected = REFUSED
        assert read_all(read_json, text) == expected, text
        accepted += expected is not REFUSED
    assert accepted > 100


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


def test_literals_that_are_read_mean_what_python_means() -> None:
    accepted = 0
    for text in changed(PYTHON_SEEDS, "{}[]()'\",:0123x.None\\ ", 3000):
        found = read_all(read_python, text)
        if found is REFUSED:
            continue
        accepted += 1
        if "\\" in text or "true" in text or "null" in text:
            continue  # escapes that Python only warns of; JSON's words
        assert found == as_json(ast.literal_eval(text.strip())), text
    assert accepted > 100


def test_a_control_character_in_a_string_is_passed_on_escaped() -> None:
    assert read_all(read_json, '{"a": "x\ny\t"}') == {"a": "x\ny\t"}


def test_nesting_is_bounded() -> None:
    assert read_all(read_json, "[" * 100 + "]" * 100) is not REFUSED
    assert read_all(read_json, "[" * 100_000) is REFUSED
    assert read_all(read_python, "(" * 100_000) is REFUSED
