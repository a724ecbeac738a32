"""Kernel of rotary.apply. Legend: T tokens, N query heads, K kv heads, H head dim, P positions."""

from __future__ import annotations

import torch


def apply_rotary(
    q_TNH: torch.Tensor, k_TKH: torch.Tensor, positions_T: torch.Tensor, cos_sin_PH: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate both by the angles of their positions."""
    cos, sin = cos_sin_PH[positions_T].unsqueeze(1).to(q_TNH.dtype).chunk(2, dim=-1)
    cos_T1H, sin_T1H = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
    return _rotate(q_TNH, cos_T1H, sin_T1H), _rotate(k_TKH, cos_T1H, sin_T1H)


def _rotate(x_TNH: torch.Tensor, cos_T1H: torch.Tensor, sin_T1H: torch.Tensor) -> torch.Tensor:
    swapped = x_TNH.roll(x_TNH.shape[-1] // 2, dims=-1)
    return (x_TNH * cos_T1H).addcmul_(swapped, sin_T1H)
