"""The one reader of JSON files that users bring, and how their values are quoted in errors.

Whatever a file holds, the outcome is an object or an error that names the file.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenspeed.errors import CheckpointError, shown

__all__ = [
    "ADVICE",
    "parse_json_object",
    "read_json_object",
    "read_optional_json_object",
    "read_text",
    "shown",
]
ADVICE = "check the model folder, or fetch the file again"
"""What to do about a file of a model folder; other files have advice of their own."""


def read_text(path: Path, *, advice: str = ADVICE) -> str:
    """Read a UTF-8 file.

    Args:
        advice: what to do when it cannot be read; ends the error.
    Raises:
        CheckpointError: it cannot be read, or is not UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror}; a readable file was expected there; {advice}"
        ) from error
    except UnicodeDecodeError as error:
        raise CheckpointError(
            f"cannot read {path}: byte {error.start} is not UTF-8 ({error.reason}); UTF-8 text was "
            f"expected; {advice}"
        ) from error


def read_json_object(path: Path, *, advice: str = ADVICE) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Args:
        advice: as `read_text`.
    Raises:
        CheckpointError: missing, not UTF-8 JSON, nested without end, or not an object.
    """
    return parse_json_object(read_text(path, advice=advice), path, advice=advice)


def read_optional_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object; a missing file is an empty object."""
    return read_json_object(path) if path.exists() else {}


def parse_json_object(text: str | bytes, path: Path, *, advice: str = ADVICE) -> dict[str, Any]:
    """Parse the JSON object that `path` holds.

    Raises:
        CheckpointError: as `read_json_object`.
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(
            f"cannot read {path}: {error}; valid UTF-8 JSON was expected; {advice}"
        ) from error
    if not isinstance(value, dict):
        raise CheckpointError(
            f"cannot read {path}: it holds a JSON {type(value).__name__}; an object was expected; "
            f"{advice}"
        )
    return value
