"""Patterns of JSON Schema as the bodies of grammar rules: the texts in which a pattern is found.

A pattern is looked for anywhere in a text, so what it leaves open at either end may be any text.
Where readers of patterns differ (is a foreign digit one?) the rule keeps to what all of them take.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tokenspeed.grammar.character_sets import ESCAPED, NAMED, complement, plain, union, written
from tokenspeed.grammar.schema_errors import malformed, unsupported

if TYPE_CHECKING:
    from tokenspeed.grammar.character_sets import Characters
    from tokenspeed.grammar.schema_errors import Path

MAX_REPEATS = 10_000
_ANY = written(complement(ESCAPED))
_REPEAT = re.compile(r"[*+?]|\{(\d{1,6})(?:(,)(\d{0,6}))?\}")
_CODE = re.compile(r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})")
_CONTROLS = {"t": 9, "n": 10, "v": 11, "f": 12, "r": 13, "0": 0}


def rule_of(pattern: object, path: Path) -> str:
    """Return the rule of the texts in which a pattern is found.

    Raises:
        RequestError: it is no pattern, or cannot be kept.
    """
    if not isinstance(pattern, str):
        raise malformed(path, pattern, "a pattern")
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as error:
        raise malformed(path, pattern, f"a regular expression ({error})") from error
    return _Reader(pattern, path).whole()


class _Reader:
    """Reads one pattern from left to right."""

    def __init__(self, pattern: str, path: Path) -> None:
        self._pattern = pattern
        self._path = path
        self._place = 0

    def whole(self) -> str:
        """Read all of it; ^ and $ stand at the ends of its alternatives."""
        alternatives: list[str] = []
        while True:
            begins = self._takes("^")
            text = self._sequence()
            ends = self._takes("$")
            parts = ("" if begins else f"{_ANY}*", text, "" if ends else f"{_ANY}*")
            alternatives.append(" ".join(filter(None, parts)) or '""')
            if self._place == len(self._pattern):
                return f"({' | '.join(alternatives)})"
            if not self._takes("|"):
                raise self._refusal("^ and $ are supported at the ends only", "move them")

    def _sequence(self) -> str:
        items: list[str] = []
        while self._place < len(self._pattern) and self._pattern[self._place] not in "|)^$":
            items.append(self._repeated(self._item()))
        return " ".join(items)

    def _item(self) -> str:
        if self._takes("("):
            return self._group()
        negated = self._takes("[^")
        if negated or self._takes("["):
            return self._set(self._class(negated))
        if self._takes("."):
            return _ANY
        return self._set(self._one(is_negated=False))

    def _group(self) -> str:
        if self._takes("?") and not self._takes(":"):
            raise self._refusal("look-around, flags and named groups are not supported")
        alternatives = [self._sequence() or '""']
        while self._takes("|"):
            alternatives.append(self._sequence() or '""')
        if not self._takes(")"):
            raise self._refusal("^ and $ are supported at the ends only", "move them")
        return f"({' | '.join(alternatives)})"

    def _class(self, negated: bool) -> Characters:
        """Read a class behind its opening bracket."""
        found: list[tuple[int, int]] = []
        is_first = True
        while is_first or not self._takes("]"):
            is_first = False
            one = self._one(is_negated=negated)
            if self._pattern[self._place] == "-" and self._pattern[self._place + 1] != "]":
                self._place += 1
                last = self._one(is_negated=negated)
                one = ((one[0][0], last[-1][1]),)
            found += one
        return complement(union(found)) if negated else union(found)

    def _one(self, *, is_negated: bool) -> Characters:
        """Read one character, or an escape that names several."""
        character = self._pattern[self._place]
        code = _CODE.match(self._pattern, self._place)
        if code is not None:
            self._place = code.end()
            number = int(code[1] or code[2], 16)
            return ((number, number),)
        self._place += 1
        if character != "\\":
            return ((ord(character), ord(character)),)
        return self._escape(is_negated)

    def _escape(self, is_negated: bool) -> Characters:
        letter = self._pattern[self._place]
        self._place += 1
        if letter.lower() in NAMED:
            least, most = NAMED[letter.lower()]
            if letter.islower():
                return most if is_negated else least
            return complement(least if is_negated else most)
        if letter in _CONTROLS:
            return ((_CONTROLS[letter], _CONTROLS[letter]),)
        if letter.isalnum():
            raise self._refusal("word boundaries, back references and \\p are not supported")
        return ((ord(letter), ord(letter)),)

    def _set(self, characters: Characters) -> str:
        kept = plain(characters)
        if not kept:
            raise self._refusal(
                "quotes, backslashes and control characters are not supported in patterns",
                "leave them out",
            )
        return written(kept)

    def _repeated(self, item: str) -> str:
        found = _REPEAT.match(self._pattern, self._place)
        if found is None:
            return item
        self._place = found.end()
        if self._pattern[self._place : self._place + 1] in ("?", "+"):
            raise self._refusal("lazy and possessive repetitions are not supported")
        if any(int(count or 0) > MAX_REPEATS for count in (found[1], found[3])):
            raise self._refusal(f"more than {MAX_REPEATS} repetitions are not supported")
        return item + found[0]

    def _takes(self, text: str) -> bool:
        is_there = self._pattern.startswith(text, self._place)
        self._place += len(text) * is_there
        return is_there

    def _refusal(self, why: str, hint: str = "use a simpler pattern") -> Exception:
        return unsupported(self._path, why, hint)
