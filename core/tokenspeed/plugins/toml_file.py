"""The one reader of TOML files that strangers write: manifests, lock files, the operator's file.

Whatever lies at the path, the outcome is a table or an OSError or ValueError: never an endless
read, and nothing that the parser lets through.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES = 1 << 20


def read_toml(path: Path) -> dict[str, Any]:
    """Read a TOML file.

    Raises:
        OSError: it is missing, cannot be read, or is no file (a pipe would block for ever).
        ValueError: it is larger than MAX_BYTES, not UTF-8, not TOML, or nested without end.
    """
    import tomllib

    about = path.stat()
    if not stat.S_ISREG(about.st_mode):
        raise OSError(f"{path} is no regular file")
    if about.st_size > MAX_BYTES:
        raise ValueError(f"it has {about.st_size} bytes, at most {MAX_BYTES} are read")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
