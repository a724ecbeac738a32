"""What a wheel installed, as its RECORD says: a digest of it, and which files are no longer so.

The digest covers name and hash of every file that the wheel itself brought, and nothing that an
installer added, so that it is the same on every machine. Reads files; imports nothing.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

NO_RECORD = "none"
_ADDED = frozenset({"RECORD", "INSTALLER", "REQUESTED", "direct_url.json"})
_CHUNK_BYTES = 1 << 20


def record_digest(info: Path) -> str:
    """Return 64 hex digits over a dist-info's RECORD; "none" where there is none."""
    rows = sorted(f"{path} {digest}" for path, digest in _rows(info))
    return _digest_of(rows) if rows else NO_RECORD


def changed_files(info: Path) -> list[str]:
    """Return every file whose bytes are not what RECORD says, "missing" included; sorted."""
    return sorted(
        path
        for path, digest in _rows(info)
        if _hash(info.parent / path, digest.partition("=")[0]) != digest
    )


def unlisted_digest(info: Path, folders: Iterable[Path]) -> str:
    """Return 64 hex digits over the files below some folders that RECORD does not state; "": none.

    Compiled Python is left out: the interpreter writes it beside what it was made from.
    """
    stated = {info.parent / path for path, _ in _rows(info)}
    rows = []
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and path.parent.name != "__pycache__" and path not in stated:
                rows.append(f"{path.relative_to(folder)} {_hash(path)}")
    return _digest_of(sorted(rows)) if rows else ""


def is_editable(info: Path) -> bool:
    """Say whether the wheel only points at a source folder, which its RECORD does not cover."""
    try:
        data = json.loads((info / "direct_url.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    folder = data.get("dir_info") if isinstance(data, dict) else None
    return bool(isinstance(folder, dict) and folder.get("editable"))


def _rows(info: Path) -> Iterator[tuple[str, str]]:
    """Yield (path, hash) of the wheel's own files."""
    try:
        text = (info / "RECORD").read_text(encoding="utf-8", errors="replace")
        rows = list(csv.reader(text.splitlines()))
    except (OSError, csv.Error):
        return
    for row in rows:
        if len(row) == 3 and row[1] and not row[0].startswith(("..", "/")) and "\0" not in row[0]:
            folder, _, name = row[0].rpartition("/")
            if not (folder == info.name and name in _ADDED):
                yield row[0], row[1]


def _hash(path: Path, algorithm: str = "sha256") -> str:
    """Return ALGORITHM=DIGEST as RECORD writes it; "missing" for what is no file."""
    if algorithm not in hashlib.algorithms_guaranteed or not path.is_file():
        return "missing"
    digest = hashlib.new(algorithm)
    if not digest.digest_size:
        return "missing"
    try:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK_BYTES):
                digest.update(chunk)
    except OSError:
        return "missing"
    return f"{algorithm}=" + base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode()


def _digest_of(rows: list[str]) -> str:
    return hashlib.sha256("\n".join(rows).encode()).hexdigest()
