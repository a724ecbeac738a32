"""What plugin authors may import: the promise of this API version. Loads no torch."""

from __future__ import annotations

from tokenspeed.checkpoint import (
    GgufHeader,
    GgufTensor,
    HfFolder,
    SafetensorsHeader,
    SafetensorsTensor,
    is_hf_folder,
)
from tokenspeed.contracts.registration import Offer
from tokenspeed.contracts.weights import LinearWeight, WeightFormat, WeightSource
from tokenspeed.env import cache_dir
from tokenspeed.errors import CheckpointError
from tokenspeed.log import LOGGER

__all__ = [
    "LOGGER",
    "CheckpointError",
    "GgufHeader",
    "GgufTensor",
    "HfFolder",
    "LinearWeight",
    "Offer",
    "SafetensorsHeader",
    "SafetensorsTensor",
    "WeightFormat",
    "WeightSource",
    "cache_dir",
    "is_hf_folder",
]

plugin = object()
