"""Files on disk: headers, and the model that is fetched when none is named. Knows no torch."""

from __future__ import annotations

from tokenspeed.checkpoint.gguf import GgufHeader, GgufTensor
from tokenspeed.checkpoint.hf_folder import HfFolder, is_hf_folder
from tokenspeed.checkpoint.safetensors_header import SafetensorsHeader, SafetensorsTensor

__all__ = [
    "GgufHeader",
    "GgufTensor",
    "HfFolder",
    "SafetensorsHeader",
    "SafetensorsTensor",
    "is_hf_folder",
]
