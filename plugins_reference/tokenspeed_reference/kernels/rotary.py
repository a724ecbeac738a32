"""Kernel of rotary.apply. Legend: T tokens, N heads, H head dim."""

from __future__ import annotations

import torch


def apply_rotary(x_TNH: torch.Tensor, cos_T1H: torch.Tensor, sin_T1H: torch.Tensor) -> torch.Tensor:
    """Rotate all heads by the angles of their tokens."""
    swapped = x_TNH.roll(x_TNH.shape[-1] // 2, -1)
    return (x_TNH * cos_T1H).addcmul_(swapped, sin_T1H)
