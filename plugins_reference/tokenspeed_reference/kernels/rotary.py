"""Kernels of rotary.angles and rotary.apply.

Legend: T tokens, N heads, H head dim, A rotated dims, P positions.
"""

from __future__ import annotations

import torch


def rotary_angles(
    positions_T: torch.Tensor, cos_sin_PA: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gather cosines and sines and spread them over both halves."""
    cos, sin = cos_sin_PA[positions_T].unsqueeze(1).chunk(2, dim=-1)
    return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def apply_rotary(x_TNH: torch.Tensor, cos_T1A: torch.Tensor, sin_T1A: torch.Tensor) -> torch.Tensor:
    """Rotate all heads by the angles of their tokens."""
    num_turned = cos_T1A.shape[-1]
    if num_turned < x_TNH.shape[-1]:
        turned = apply_rotary(x_TNH[..., :num_turned], cos_T1A, sin_T1A)
        return torch.cat((turned, x_TNH[..., num_turned:]), dim=-1)
    swapped = x_TNH.roll(num_turned // 2, -1)
    return (x_TNH * cos_T1A).addcmul_(swapped, sin_T1A)
