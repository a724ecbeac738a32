"""Checkpoints whose weights lie in one file `weights.sim` beside config.json.

As it stands the file is laid out as safetensors; replace `open` with your own reader.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenspeed_reference.formats.safetensors import SafetensorsSource
from tokenspeed_sdk import CheckpointError, SafetensorsHeader

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed_sdk import WeightSource

WEIGHTS = "weights.sim"


class Format:
    """WeightFormat of such folders."""

    name = "sim"

    def matches(self, path: Path) -> bool:
        """Say whether `path` is such a folder."""
        return (path / WEIGHTS).is_file()

    def open(self, path: Path) -> WeightSource:
        """Open it.

        Raises:
            CheckpointError: a file is missing or damaged.
        """
        try:
            config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"cannot load {path}: config.json cannot be read ({error}); a JSON file beside "
                f"{WEIGHTS} is needed; write it"
            ) from error
        return SafetensorsSource(config, (SafetensorsHeader.read(path / WEIGHTS),))
