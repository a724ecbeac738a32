"""Kernel of rotary.apply. Legend: T tokens, N query heads, K kv heads, H head dim, P positions."""

from __future__ import annotations

import torch


def apply_rotary(
    q_TNH: torch.Tensor, k_TKH: torch.Tensor, positions_T: torch.Tensor, cos_sin_PH: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate both by the angles of their positions."""
    angles = cos_sin_PH[positions_T].unsqueeze(1).to(q_TNH.dtype)
    cos, sin = angles.chunk(2, dim=-1)
    return _rotate(q_TNH, cos, sin), _rotate(k_TKH, cos, sin)


def _rotate(x_TNH: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x_TNH.chunk(2, dim=-1)
    rotated_first = (first * cos).addcmul_(second, sin, value=-1)
    rotated_second = (second * cos).addcmul_(first, sin)
    return torch.cat((rotated_first, rotated_second), dim=-1)
