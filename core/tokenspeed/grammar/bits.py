"""Bits of masks: token t is bit t % 32 of word t // 32."""

from __future__ import annotations

import numpy as np


def bit(token: int) -> np.int32:
    """Return a token's bit in its word."""
    return np.int32(-(2**31) if token % 32 == 31 else 1 << (token % 32))
