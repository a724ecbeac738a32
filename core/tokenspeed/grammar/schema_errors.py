"""What is said of a schema that cannot be used; the path within it is part of every message."""

from __future__ import annotations

import json
import re
from typing import Any

from tokenspeed.errors import RequestError

Path = tuple[str | int, ...]

_LOOKS = re.compile(r"\(\?(?!:)")
_CLASS = re.compile(r"\[(?:\\.|[^\]\\])*\]")
_RAW = re.compile(r'"|\\[\\ntrfv0c]|\\x[01]|\\u00[01]|[\x00-\x1f]')
_MOVED_ANCHOR = re.compile(r"(?<!^)(?<![|(])\^|\$(?!$|[|)])")


def malformed(path: Path, value: object, wanted: str) -> RequestError:
    """Return the error of a schema that is none."""
    return _error(path, f"got {shown(value)}, needed is {wanted}; correct it")


def impossible(path: Path, why: str) -> RequestError:
    """Return the error of a schema that no value can meet."""
    return _error(path, f"no value can meet the schema: {why}; correct it")


def unsupported(path: Path, why: str, hint: str) -> RequestError:
    """Return the error of a schema that cannot be kept."""
    return _error(path, f"{why}; {hint}", code="unsupported_schema")


def bad_pattern(pattern: object, path: Path) -> str:
    """Return a pattern if it can be kept within a JSON string.

    Raises:
        RequestError: it cannot, or is no pattern.
    """
    if not isinstance(pattern, str):
        raise malformed(path, pattern, "a pattern")
    try:
        re.compile(pattern)
    except re.error as error:
        raise malformed(path, pattern, f"a regular expression ({error})") from error
    if _LOOKS.search(pattern) or re.search(r"\\[bBpPk1-9]", pattern):
        raise unsupported(
            path, "look-around, flags, word boundaries, back references and \\p are not supported",
            "use a simpler pattern",
        )  # fmt: skip
    outside = _CLASS.sub("x", pattern)
    if _RAW.search(outside):
        raise unsupported(
            path, "quotes, backslashes and control characters are not supported in patterns",
            "leave them out",
        )  # fmt: skip
    if _MOVED_ANCHOR.search(re.sub(r"\\.", "xx", outside)):
        raise unsupported(path, "^ and $ are supported at the ends only", "move them")
    return pattern


def shown(value: Any) -> str:
    """Return a value as messages show it."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _error(path: Path, said: str, code: str | None = None) -> RequestError:
    place = "#" + "".join(f"/{str(part)[:64]}" for part in path[-24:])
    param = ".".join(["grammar", *(str(part)[:64] for part in path[:24])])
    return RequestError(f"at {place}: {said}", param=param, code=code)
