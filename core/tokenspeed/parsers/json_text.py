"""Reads JSON character by character and passes its text on as the model wrote it.

Strict (RFC 8259), but for control characters inside strings, which models write in code: they are
passed on escaped. What is passed on is JSON that every client can read.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tokenspeed.parsers.source import BadCall, UnfinishedCall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.parsers.source import Emit, Source, Steps

MAX_DEPTH = 128
MAX_NUMBER_CHARS = 512
MAX_SHOWN_CHARS = 40
CONSTANTS = {word: word for word in ("true", "false", "null")}
_PLAIN = re.compile(r'[^"\\\x00-\x1f]+')
_SPACE = re.compile(r"[ \t\r\n]+")
_WORD = re.compile(r"[A-Za-z0-9_.+-]+")
_NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_NUMBER_HEAD = re.compile(r"-?((0|[1-9][0-9]*)(\.[0-9]*|(\.[0-9]+)?[eE][-+]?[0-9]*)?)?")
_NUMBER_STARTS = frozenset("-0123456789")
_NUMBER_CHARS = frozenset("-+.eE0123456789")
_HEX = re.compile(r"[0-9a-fA-F]{4}")
_CLOSES = {"{": "}", "[": "]"}


def escaped(text: str) -> str:
    """Return text as it stands between the quotes of a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


def read_json(
    source: Source, emit: Emit, *, constants: Mapping[str, str] = CONSTANTS
) -> Steps[None]:
    """Read one JSON value and emit its text.

    Args:
        constants: words that may stand for a value -> what is emitted for them.
    Raises:
        BadCall: it is no JSON; UnfinishedCall: the text ends inside it.
    """
    open_brackets: list[str] = []
    while True:
        char = yield from _space_and_char(source, emit)
        if char in _CLOSES and len(open_brackets) < MAX_DEPTH:
            emit((yield from source.take(1)))
            char_next = yield from _space_and_char(source, emit)
            if char_next != _CLOSES[char]:
                open_brackets.append(char)
                if char == "{":
                    yield from _read_key(source, emit)
                continue
            emit((yield from source.take(1)))
        elif char == '"':
            yield from read_string(source, emit)
        else:
            yield from _read_word(source, emit, constants)
        if (yield from _close(source, emit, open_brackets)):
            return


def _close(source: Source, emit: Emit, open_brackets: list[str]) -> Steps[bool]:
    """Read what follows a value up to the next one; True: the outermost value is complete."""
    while open_brackets:
        char = yield from _space_and_char(source, emit)
        if char == ",":
            emit((yield from source.take(1)))
            if open_brackets[-1] == "{":
                yield from _read_key(source, emit)
            return False
        if char != _CLOSES[open_brackets[-1]]:
            raise _unexpected(char, f"',' or {_CLOSES[open_brackets[-1]]!r}")
        emit((yield from source.take(1)))
        open_brackets.pop()
    return True


def _read_key(source: Source, emit: Emit) -> Steps[None]:
    yield from _space_and_char(source, emit)
    yield from read_string(source, emit)
    char = yield from _space_and_char(source, emit)
    if char != ":":
        raise _unexpected(char, "':'")
    emit((yield from source.take(1)))


def read_string(source: Source, emit: Emit) -> Steps[None]:
    """Read a JSON string and emit it with its quotes."""
    char = yield from source.char()
    if char != '"':
        raise _unexpected(char, "'\"'")
    emit((yield from source.take(1)))
    while True:
        yield from source.run(_PLAIN, emit)
        char = yield from source.take(1)
        if char == '"':
            emit(char)
            return
        if char == "\\":
            emit((yield from _escape(source)))
        elif char:
            emit(escaped(char))
        else:
            raise UnfinishedCall


def _escape(source: Source) -> Steps[str]:
    char = yield from source.take(1)
    if not char:
        raise UnfinishedCall
    if char == "u":
        digits = yield from source.take(4)
        if len(digits) < 4:
            raise UnfinishedCall
        if _HEX.fullmatch(digits):
            return "\\u" + digits
    elif char in '"\\/bfnrt':
        return "\\" + char
    raise BadCall(f"the call is no JSON: '\\{char}' is no escape in a string")


def _read_word(source: Source, emit: Emit, constants: Mapping[str, str]) -> Steps[None]:
    """Read a number, emitted while it comes, or a constant."""
    if (yield from source.char()) in _NUMBER_STARTS:
        yield from _read_number(source, emit)
        return
    parts: list[str] = []
    yield from source.run(_WORD, parts.append)
    word = "".join(parts)
    if word in constants:
        emit(constants[word])
        return
    char = yield from source.char()
    if not char and any(constant.startswith(word) for constant in constants):
        raise UnfinishedCall
    raise _unexpected(word[:MAX_SHOWN_CHARS] or char, "a JSON value")


def _read_number(source: Source, emit: Emit) -> Steps[None]:
    number = ""
    while (char := (yield from source.char())) and char in _NUMBER_CHARS:
        if len(number) == MAX_NUMBER_CHARS or not _NUMBER_HEAD.fullmatch(number + char):
            raise _unexpected(number[:MAX_SHOWN_CHARS] + char, "a number")
        number += char
        emit((yield from source.take(1)))
    if not _NUMBER.fullmatch(number):
        raise _unexpected(number + char if char else "", "a number")


def _space_and_char(source: Source, emit: Emit) -> Steps[str]:
    yield from source.run(_SPACE, emit)
    char = yield from source.char()
    if not char:
        raise UnfinishedCall
    return char


def _unexpected(found: str, wanted: str) -> BadCall:
    if not found:
        return UnfinishedCall()
    return BadCall(f"the call is no JSON: {found!r} stands where {wanted} must")


def read_arguments(source: Source, emit: Emit) -> Steps[None]:
    """Read the JSON object of a call's arguments; null counts as an empty one."""
    char = yield from source.skip_space()
    if not char:
        raise UnfinishedCall
    if char == "n":
        yield from read_json(source, lambda _: None)
        emit("{}")
        return
    if char != "{":
        raise BadCall(f"the arguments are no JSON object: they begin with {char!r}")
    yield from read_json(source, emit)
