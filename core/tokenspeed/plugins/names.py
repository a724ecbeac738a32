"""What plugins, offers and settings may be called: names go into pins, paths, logs and metrics."""

from __future__ import annotations

import math
import re

_ID = re.compile(r"[a-z][a-z0-9_-]{0,62}")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:+-]{0,127}")
_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
ID_RULE = "1 to 63 lower-case letters, digits, - and _, a letter first"
NAME_RULE = "1 to 128 letters, digits and _ . : + -"
KEY_RULE = "1 to 64 letters, digits, - and _"
TRAIT_RULE = "texts, numbers and true or false are needed, none of them infinite"
_TARGET = re.compile(r"[^\W\d][\w.]{0,254}:[^\W\d][\w.]{0,254}")


def is_id(text: object) -> bool:
    """Say whether a text can be a plugin's id; `--plugins auto` means no plugin."""
    return isinstance(text, str) and _ID.fullmatch(text) is not None and text != "auto"


def is_name(text: object) -> bool:
    """Say whether a text can name an offer, an operator, an architecture or a device kind."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def is_key(text: object) -> bool:
    """Say whether a text can name a setting."""
    return isinstance(text, str) and _KEY.fullmatch(text) is not None


def is_target(text: object) -> bool:
    """Say whether a text is MODULE:OBJECT."""
    return isinstance(text, str) and _TARGET.fullmatch(text) is not None


def are_trait_values(values: object) -> bool:
    """Say whether values can be compared with what a request wants; a bare text is none."""
    return isinstance(values, tuple) and all(
        isinstance(value, str | bool | int) or (isinstance(value, float) and math.isfinite(value))
        for value in values
    )


def printable(text: str) -> str:
    """Return a text that others wrote as one line that cannot steer a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)
