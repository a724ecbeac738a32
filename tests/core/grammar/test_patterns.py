"""Patterns and names of properties let through what they say, and nothing else."""

from __future__ import annotations

import itertools
import json
import random
import re
from typing import Any

import pytest
from tests.support.grammars import byte_vocabulary, holds

from tokenspeed.contracts.grammar import GrammarSpec
from tokenspeed.errors import RequestError
from tokenspeed.grammar.schema_names import are_apart, other_names
from tokenspeed.grammar.xgrammar_engine import XGrammarEngine

pytest.importorskip("xgrammar")
ATOMS = ("a", "b", "c", "[ab]", "[^a]", "[^b]", ".", "[a-b]", r"\w", r"[^\W]")
REPEATS = ("*", "+", "?", "{1,2}", "{0,1}", "{2}", "{1,}", "{0,2}")
TEXTS = ["".join(letters) for n in range(5) for letters in itertools.product("abc", repeat=n)]
NAMES = ("a", "abc", "x-y", "]", "^z", "a b", "\u00e9", 'q"x', "back\\\\slash", "a/b", "x" * 70)


@pytest.fixture(scope="module")
def engine() -> XGrammarEngine:
    return XGrammarEngine(byte_vocabulary())


def language(engine: XGrammarEngine, schema: Any) -> Any:
    return engine.compile(GrammarSpec("json_schema", json.dumps(schema)))


def random_pattern(rng: random.Random, depth: int = 3) -> str:
    kind = rng.randrange(9)
    if depth == 0 or kind < 3:
        return rng.choice(ATOMS)
    if kind < 5:
        return random_pattern(rng, depth - 1) + random_pattern(rng, depth - 1)
    if kind < 7:
        either = f"{random_pattern(rng, depth - 1)}|{random_pattern(rng, depth - 1)}"
        return f"{rng.choice(['(', '(?:'])}{either})"
    return f"({random_pattern(rng, depth - 1)}){rng.choice(REPEATS)}"


def test_random_patterns_allow_exactly_what_is_found(engine: XGrammarEngine) -> None:
    seed = random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for _ in range(60):
        begin, end = rng.choice(["^", ""]), rng.choice(["$", ""])
        pattern = begin + random_pattern(rng) + end + rng.choice(["", "|^ab$"])
        grammar = language(engine, {"type": "string", "pattern": pattern})
        found = [text for text in TEXTS if re.search(pattern, text)]
        assert [text for text in TEXTS if holds(grammar, f'"{text}"')] == found, (seed, pattern)


@pytest.mark.parametrize(
    ("pattern", "inside", "outside"),
    [
        (r"^\d{2}-\d{2}$", ["12-34"], ["1-2", "\u0661\u0662-34"]),
        (r"^[^\s]+$", ["a", "-"], ["a b", "\u00a0"]),
        (r"^[\x41-\x43\u00e9-\u00eb]$", ["A", "C", "\u00ea"], ["D", "e"]),
        (r"^[]a]$", ["]", "a"], ["b"]),
        (r"^\(\d\)\.$", ["(1)."], ["1."]),
        ("^$", [""], ["a"]),
        ("", ["", "ab"], []),
        ("^.{1,300}$", ["a" * 300], ["", "a" * 301]),
        ("^[\U0001f600-\U0001f602]$", ["\U0001f601"], ["\U0001f603"]),
    ],
)
def test_a_pattern_allows(
    pattern: str, inside: list[str], outside: list[str], engine: XGrammarEngine
) -> None:
    grammar = language(engine, {"type": "string", "pattern": pattern})
    for text, is_in in [*((t, True) for t in inside), *((t, False) for t in outside)]:
        shown = json.dumps(text, ensure_ascii=False)
        assert holds(grammar, shown) is is_in, text


@pytest.mark.parametrize(
    "pattern", ["a(?=b)", "(?i)a", r"\ba", r"(a)\1", "a(^b)", "a*?", '"', "a$b"]
)
def test_a_pattern_that_cannot_be_kept_is_refused(pattern: str, engine: XGrammarEngine) -> None:
    with pytest.raises(RequestError) as caught:
        language(engine, {"type": "string", "pattern": pattern})
    assert caught.value.param == "grammar.pattern"


@pytest.mark.parametrize("required", [False, True])
def test_no_spelling_of_a_declared_name_gets_round_its_schema(
    required: bool, engine: XGrammarEngine
) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: {"type": "integer"} for name in NAMES},
        "additionalProperties": {"type": "string"},
    }
    needed = "a" if required else ""
    grammar = language(engine, schema | ({"required": ["a"]} if required else {}))
    for name in NAMES:
        for spelled in (
            json.dumps(name),
            json.dumps(name, ensure_ascii=False),
            '"' + "".join(f"\\\\u{ord(letter):04x}" for letter in name) + '"',
        ):
            head = '{"a": 1, ' if needed and name != "a" else "{"
            assert not holds(grammar, f'{head}{spelled}: "x"}}'), spelled
    for name in ("", "ab", "abcd", "b", "x-", "x-yy", "A", "\u00e8", "]]", "a/c"):
        head = '{"a": 1, ' if needed else "{"
        assert holds(grammar, f'{head}"{name}": "x"}}'), name


def test_other_names_are_all_but_the_given_ones() -> None:
    pattern = re.compile(other_names(["a", "ab", "bca"]))
    left = [name for name in TEXTS if pattern.fullmatch(name)]
    assert left == [name for name in TEXTS if name not in ("a", "ab", "bca")]


def test_patterns_are_apart_where_they_begin_with_different_texts() -> None:
    assert are_apart(["^x_", "^y_[a-z]+$"])
    assert not are_apart(["^x_", "^x_a"])
    assert not are_apart(["^a|b", "^c"])
    assert not are_apart(["^ab*", "^ac"])
    assert not are_apart(["a", "b"])


def test_large_open_objects_compile_in_little_memory(engine: XGrammarEngine) -> None:
    names = [f"property_number_{i}_of_many" for i in range(300)]
    schema = {"type": "object", "properties": {name: {"type": "null"} for name in names}}
    assert language(engine, schema).num_bytes < 32 << 20
