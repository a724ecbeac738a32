"""Files on disk: headers, and the model that is fetched when none is named. Knows no torch."""

from __future__ import annotations

from tokenspeed.checkpoint.gguf import GgufHeader, GgufTensor

__all__ = ["GgufHeader", "GgufTensor"]
