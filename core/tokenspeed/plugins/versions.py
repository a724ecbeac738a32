"""Version ranges such as ">=1.0,<2", over the numeric part of a version."""

from __future__ import annotations

import operator
import re

from tokenspeed.errors import shown

_OPERATORS = {
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
    ">": operator.gt,
    "<": operator.lt,
}
_NUMBERS = r"[0-9]{1,9}(?:\.[0-9]{1,9})*"
_CLAUSE = re.compile(rf"(>=|<=|==|!=|>|<)\s*({_NUMBERS})")


def is_slot_version(text: object) -> bool:
    """Say whether a text is "major.minor"."""
    parts = text.split(".") if isinstance(text, str) and text.isascii() else ()
    return len(parts) == 2 and all(part.isdecimal() and len(part) <= 4 for part in parts)


def release(version: str) -> tuple[int, ...]:
    """Return the numeric release of a version, trailing zeros dropped: "2.13.0+cpu" is (2, 13).

    Raises:
        ValueError: it does not begin with a number.
    """
    match = re.match(_NUMBERS, version)
    if match is None:
        raise ValueError(f"version {shown(version)} does not begin with a number")
    parts = [int(part) for part in match.group().split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def parse_range(text: str) -> tuple[tuple[str, str], ...]:
    """Split a range into (operator, version) clauses; all of them must hold.

    Raises:
        ValueError: a clause is not one of >= <= == != > < and a dotted number.
    """
    clauses = []
    for part in text.split(","):
        match = _CLAUSE.fullmatch(part.strip())
        if match is None:
            raise ValueError(
                f"version range {shown(text)}: {shown(part.strip())} is not like '>=1.0'"
            )
        clauses.append((match.group(1), match.group(2)))
    return tuple(clauses)


def satisfies(version: str, text: str) -> bool:
    """Say whether `version` lies in the range."""
    have = release(version)
    return all(_OPERATORS[sign](have, release(wanted)) for sign, wanted in parse_range(text))
