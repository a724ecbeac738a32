"""Compares a wheel's files with its RECORD."""

from __future__ import annotations

import base64
import hashlib
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenspeed.plugins.discovery import FoundPlugin


def check_record(found: FoundPlugin) -> str | None:
    """Return what differs, or "" if nothing; None if no RECORD lists the package (editable)."""
    files = metadata.Distribution.at(Path(found.path)).files or []
    package = found.target.partition(":")[0].partition(".")[0]
    own = [file for file in files if file.parts[0] == package]
    if not own:
        return None
    problems = [problem for file in own if (problem := _problem(file))]
    return "; ".join(problems)


def _problem(file: metadata.PackagePath) -> str:
    path = Path(str(file.locate()))
    if not path.is_file():
        return f"{file} is in RECORD and not on disk"
    if file.hash is None:
        return "" if path.suffix == ".pyc" else f"{file} has no digest in RECORD"
    digest = hashlib.new(file.hash.mode, path.read_bytes()).digest()
    text = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
    return "" if text == file.hash.value else f"{file} differs from its digest in RECORD"
