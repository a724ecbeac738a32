"""Weight format `none`, for models that compute without weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed_sdk.testkit.config_folder import ConfigFolderFormat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from tokenspeed_sdk import LinearWeight


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


class NoWeights(ConfigFolderFormat):
    """Format "none"."""

    name = "none"
    source = NoWeightsSource
