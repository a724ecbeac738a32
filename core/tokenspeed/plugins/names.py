"""What plugins, offers and settings may be called: names go into pins, paths, logs and metrics."""

from __future__ import annotations

import math
from string import ascii_letters, ascii_lowercase, digits
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

# Sets instead of patterns: compiling five of those takes longer than a listing has.
_WORD = frozenset(ascii_letters + digits + "_")
_NAME = _WORD | frozenset(".:+-")
_KEY = _WORD | frozenset("-")
_ID = frozenset(ascii_lowercase + digits + "_-")
ID_RULE = "1 to 63 lower-case letters, digits, - and _, a letter first"
NAME_RULE = "1 to 128 letters, digits and _ . : + -"
KEY_RULE = "1 to 64 letters, digits, - and _"
TRAIT_RULE = "texts, numbers and true or false are needed, none of them infinite"

KIND_WORDS: Mapping[type, str] = {
    bool: "true or false",
    dict: "an object",
    float: "a number",
    int: "a whole number",
    list: "a list",
    str: "a text",
}
"""What errors call the kinds of values that files hold."""


def is_id(text: object) -> bool:
    """Say whether a text can be a plugin's id; `--plugins auto` means no plugin."""
    return _fits(text, _ID, 63) and str(text)[0] in ascii_lowercase and text != "auto"


def is_name(text: object) -> bool:
    """Say whether a text can name an offer, an operator, an architecture or a device kind."""
    return _fits(text, _NAME, 128) and str(text)[0] in _WORD


def is_key(text: object) -> bool:
    """Say whether a text can name a setting."""
    return _fits(text, _KEY, 64) and str(text)[0] in _WORD


def is_target(text: object) -> bool:
    """Say whether a text is MODULE:OBJECT."""
    if not isinstance(text, str) or text.count(":") != 1:
        return False
    return all(part.isidentifier() for part in text.replace(":", ".").split("."))


def are_trait_values(values: object) -> bool:
    """Say whether values can be compared with what a request wants; a bare text is none."""
    return isinstance(values, tuple) and all(
        isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
        for value in values
    )


def _fits(text: object, allowed: frozenset[str], most: int) -> bool:
    return isinstance(text, str) and 0 < len(text) <= most and allowed.issuperset(text)


def printable(text: str) -> str:
    """Return a text that others wrote as one line that cannot steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)
