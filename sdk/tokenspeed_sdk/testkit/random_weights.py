"""Weight format `random`: for models of which config.json is all there is.

Every tensor that the model takes is drawn where it will be used, so that a model of any size starts
in seconds. What it answers means nothing; what it costs is what the model costs.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any
from zlib import crc32

from tokenspeed_sdk import LinearWeight
from tokenspeed_sdk.testkit.config_folder import ConfigFolderFormat

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch


class RandomWeightSource:
    """A WeightSource of tensors that are the same in every start and on every rank.

    Matrices are normal with the width that keeps a layer's output as large as its input, vectors of
    norms and everything else with one axis are near 1. Field `nan_on_token` of config.json is the
    id of a token whose embedding is NaN, so that who reads it fails; absent: none.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        self._config = config
        self.total_bytes = 0
        self.bytes_read = 0

    def config(self) -> Mapping[str, Any]:
        """Return config.json."""
        return self._config

    def tensors(
        self,
        dtype: torch.dtype,
        *,
        keep_packed: bool,
        wanted: Mapping[str, tuple[int, ...]],
        device: torch.device,
    ) -> Iterator[tuple[str, LinearWeight]]:
        """Yield what the model takes."""
        self.total_bytes = sum(prod(shape) for shape in wanted.values()) * dtype.itemsize
        self.bytes_read = 0
        nan_token = self._config.get("nan_on_token")
        for name, shape in wanted.items():
            tensor = _drawn(name, shape, dtype, device)
            if nan_token is not None and name.endswith("embed_tokens.weight"):
                tensor[nan_token] = float("nan")
            self.bytes_read += tensor.nbytes
            yield name, LinearWeight(shape, tensor)

    def close(self) -> None:
        """Nothing is open."""


class RandomWeights(ConfigFolderFormat):
    """Format "random"."""

    name = "random"
    source = RandomWeightSource


def _drawn(
    name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    import torch

    generator = torch.Generator(device).manual_seed(crc32(name.encode()))
    drawn = torch.empty(shape, dtype=dtype, device=device).normal_(generator=generator)
    if len(shape) < 2:
        return drawn.mul_(0.1).add_(1.0)
    return drawn.mul_(shape[-1] ** -0.5)
