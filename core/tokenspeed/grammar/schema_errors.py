"""What is said of a schema that cannot be used; the path within it is part of every message."""

from __future__ import annotations

import json
from typing import Any

from tokenspeed.errors import RequestError

Path = tuple[str | int, ...]


def malformed(path: Path, value: object, wanted: str) -> RequestError:
    """Return the error of a schema that is none."""
    return _error(path, f"got {shown(value)}, needed is {wanted}; correct it")


def impossible(path: Path, why: str) -> RequestError:
    """Return the error of a schema that no value can meet."""
    return _error(path, f"no value can meet the schema: {why}; correct it")


def unsupported(path: Path, why: str, hint: str) -> RequestError:
    """Return the error of a schema that cannot be kept."""
    return _error(path, f"{why}; {hint}", code="unsupported_schema")


def shown(value: Any) -> str:
    """Return a value as messages show it."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."


def _error(path: Path, said: str, code: str | None = None) -> RequestError:
    place = "#" + "".join(f"/{str(part)[:64]}" for part in path[-24:])
    param = ".".join(["grammar", *(str(part)[:64] for part in path[:24])])
    return RequestError(f"at {place}: {said}", param=param, code=code)
