"""What the formats of folders without weights share: config.json names the format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, ClassVar

from tokenspeed_sdk import CheckpointError

if TYPE_CHECKING:
    from pathlib import Path

    from tokenspeed_sdk import WeightSource


class ConfigFolderFormat:
    """A WeightFormat of folders whose config.json has it as "weight_format".

    A subclass names itself and its source.
    """

    name: ClassVar[str]
    source: ClassVar[type[Any]]
    """A WeightSource class; built with what config.json says."""

    def matches(self, path: Path) -> bool:
        """Say whether the folder's config.json names this format."""
        try:
            return bool(_read(path).get("weight_format") == self.name)
        except (OSError, ValueError, AttributeError):
            return False

    def open(self, path: Path) -> WeightSource:
        """Open it.

        Raises:
            CheckpointError: config.json cannot be read.
        """
        try:
            opened: WeightSource = self.source(_read(path))
            return opened
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path}/config.json cannot be read: {error}; write it as JSON"
            ) from error


def _read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
    return loaded
