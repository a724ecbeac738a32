"""Weight format `none`: a folder whose config.json says `"weight_format": "none"`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenspeed_sdk import CheckpointError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import torch

    from tokenspeed_sdk import LinearWeight, WeightSource

NAME = "none"


class NoWeights:
    """A WeightFormat for models that compute without weights."""

    name = NAME

    def matches(self, path: Path) -> bool:
        """Say whether the folder's config.json names this format."""
        try:
            return bool(_read(path).get("weight_format") == NAME)
        except (OSError, ValueError, AttributeError):
            return False

    def open(self, path: Path) -> WeightSource:
        """Open it.

        Raises:
            CheckpointError: config.json cannot be read.
        """
        try:
            return NoWeightsSource(_read(path))
        except (OSError, ValueError) as error:
            raise CheckpointError(
                f"{path}/config.json cannot be read: {error}; write it as JSON"
            ) from error


class NoWeightsSource:
    """A WeightSource with a config and no tensors."""

    total_bytes = 0
    bytes_read = 0

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config

    def config(self) -> Mapping[str, Any]:
        """Return config.json."""
        return self._config

    def tensors(
        self, dtype: torch.dtype, *, keep_packed: bool
    ) -> Iterator[tuple[str, LinearWeight]]:
        """Yield nothing."""
        return iter(())

    def close(self) -> None:
        """Nothing is open."""


def _read(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((path / "config.json").read_text(encoding="utf-8"))
    return loaded
