"""Reads a Python literal character by character and passes it on as JSON.

Literals are strings, numbers, True, False, None (and JSON's words), lists, tuples and dicts;
anything else, such as a name or a call, is no argument.
"""

from __future__ import annotations

import ast
import json
import math
import re
from typing import TYPE_CHECKING

from tokenspeed.parsers.json_text import (
    CONSTANTS,
    MAX_DEPTH,
    MAX_NUMBER_CHARS,
    MAX_SHOWN_CHARS,
    escaped,
)
from tokenspeed.parsers.source import BadCall, UnfinishedCall

if TYPE_CHECKING:
    from tokenspeed.parsers.source import Emit, Source, Steps

WORDS = {**CONSTANTS, "True": "true", "False": "false", "None": "null"}
_WORD = re.compile(r"[-+.0-9A-Za-z_]+")
_NUMBER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|[0-9_]*\.?[0-9_]*([eE][-+]?[0-9]+)?)")
_PLAIN = {quote: re.compile(rf"[^{quote}\\\x00-\x1f\"]+") for quote in "'\""}
_CLOSES = {"{": "}", "[": "]", "(": ")"}
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v", "0": "\0"}
_ESCAPES |= {"\n": "", "\\": "\\", "'": "'", '"': '"'}
_CODES = {"x": 2, "u": 4, "U": 8}


def read_python(source: Source, emit: Emit) -> Steps[None]:
    """Read one literal and emit its JSON.

    Raises:
        BadCall: it is no literal; UnfinishedCall: the text ends inside it.
    """
    open_brackets: list[str] = []
    while True:
        char = yield from source.skip_space()
        if char in _CLOSES and char and len(open_brackets) < MAX_DEPTH:
            open_brackets.append(char)
            yield from source.take(1)
            emit("{" if char == "{" else "[")
            if (yield from source.skip_space()) != _CLOSES[char]:
                yield from _key(source, emit, char)
                continue
        elif char in _PLAIN and char:
            yield from _string(source, emit)
        else:
            yield from _word(source, emit)
        if (yield from _close(source, emit, open_brackets)):
            return


def _close(source: Source, emit: Emit, open_brackets: list[str]) -> Steps[bool]:
    """Read what follows a value up to the next one; True: the outermost value is complete."""
    while open_brackets:
        opening = open_brackets[-1]
        char = yield from source.skip_space()
        if char == ",":
            yield from source.take(1)
            if (yield from source.skip_space()) != _CLOSES[opening]:
                emit(", ")
                yield from _key(source, emit, opening)
                return False
        yield from source.expect(_CLOSES[opening])
        emit("}" if opening == "{" else "]")
        open_brackets.pop()
    return True


def _key(source: Source, emit: Emit, opening: str) -> Steps[None]:
    if opening != "{":
        return
    if (yield from source.skip_space()) in _PLAIN:
        yield from _string(source, emit)
    else:
        parts: list[str] = []
        yield from _word(source, parts.append)
        emit(json.dumps("".join(parts)))
    yield from source.skip_space()
    yield from source.expect(":")
    emit(": ")


def _string(source: Source, emit: Emit) -> Steps[None]:
    quote = yield from source.take(1)
    emit('"')
    while True:
        yield from source.run(_PLAIN[quote], emit)
        char = yield from source.take(1)
        if not char:
            raise UnfinishedCall
        if char == quote:
            emit('"')
            return
        emit(escaped((yield from _escape(source)) if char == "\\" else char))


def _escape(source: Source) -> Steps[str]:
    char = yield from source.take(1)
    if char in _CODES and char:
        digits = yield from source.take(_CODES[char])
        if len(digits) < _CODES[char]:
            raise UnfinishedCall
        return _code_point(digits)
    if not char:
        raise UnfinishedCall
    return _ESCAPES.get(char, "\\" + char)


def _code_point(digits: str) -> str:
    try:
        return chr(int(digits, 16))
    except (ValueError, OverflowError):
        raise BadCall(f"{digits!r} is no code of a character in a string") from None


def _word(source: Source, emit: Emit) -> Steps[None]:
    word = yield from source.word(_WORD)
    emit(WORDS[word] if word in WORDS else _number(word))


def _number(word: str) -> str:
    value = None
    if len(word) <= MAX_NUMBER_CHARS and _NUMBER.fullmatch(word):
        try:
            value = ast.literal_eval(word)
        except (ValueError, SyntaxError):
            value = None  # such as 007
    if type(value) is int or (type(value) is float and math.isfinite(value)):
        return json.dumps(value)
    raise BadCall(f"{word[:MAX_SHOWN_CHARS]!r} stands where a value must")
