"""Kernels of rotary.angles and rotary.apply. Legend: T tokens, N heads, H head dim, P positions."""

from __future__ import annotations

import torch


def rotary_angles(
    positions_T: torch.Tensor, cos_sin_PH: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather cosines and sines and spread them over whole heads."""
    cos, sin = cos_sin_PH[positions_T].unsqueeze(1).chunk(2, dim=-1)
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rotary(x_TNH: torch.Tensor, cos_T1H: torch.Tensor, sin_T1H: torch.Tensor) -> torch.Tensor:
    """Rotate all heads by the angles of their tokens."""
    swapped = x_TNH.roll(x_TNH.shape[-1] // 2, -1)
    return (x_TNH * cos_T1H).addcmul_(swapped, sin_T1H)
