"""Rotary embedding. Legend: T tokens, N heads, H head dim, P positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.ops.declare import operator

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def _cases(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    import torch

    random = torch.Generator().manual_seed(seed)
    for tokens, heads, dim in ((1, 3, 8), (5, 12, 64), (16, 4, 128)):
        angle_T1H = torch.randn(tokens, 1, dim // 2, generator=random) * 50
        sin_T1H = torch.cat([-angle_T1H.sin(), angle_T1H.sin()], dim=-1)
        x = torch.randn(tokens, heads + 1, dim, generator=random)[:, :heads]
        yield (x, torch.cat([angle_T1H.cos()] * 2, dim=-1), sin_T1H), {}


@operator("rotary.apply", cases=_cases)
def apply_rotary(x_TNH: torch.Tensor, cos_T1H: torch.Tensor, sin_T1H: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (x[i], x[i + H/2]) of each head by the angle of its token.

    Cosines and sines are looked up once a step, spread over whole heads, and serve every layer.

    Args:
        x_TNH: (T, N, H) float, device; heads of a token contiguous, query and key heads may stand
            beside each other. May be overwritten.
        cos_T1H: (T, 1, H) same dtype; both halves alike.
        sin_T1H: (T, 1, H) same dtype; the first half negated.
    Returns:
        (T, N, H) rotated, dtype of x.
    Source: RoFormer, Su et al. 2021; the half-split order is GPT-NeoX's.
    """
    import torch

    first, second = x_TNH.chunk(2, dim=-1)
    return x_TNH * cos_T1H + torch.cat([second, first], dim=-1) * sin_T1H


def _angle_cases(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    import torch

    random = torch.Generator().manual_seed(seed)
    for tokens, dim in ((1, 8), (5, 64), (16, 128)):
        table_PH = torch.randn(50, dim, generator=random)
        yield (torch.randint(0, 50, (tokens,), generator=random), table_PH), {}


@operator("rotary.angles", cases=_angle_cases)
def rotary_angles(
    positions_T: torch.Tensor, cos_sin_PH: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Look up a step's cosines and sines, spread over whole heads for `rotary.apply`.

    Args:
        positions_T: (T,) int64, device, each below P.
        cos_sin_PH: (P, H) float, device: H/2 cosines, then H/2 sines of each position.
    Returns:
        (T, 1, H) cosines, both halves alike, and (T, 1, H) sines, the first half negated; dtype of
        the table.
    """
    import torch

    cos, sin = cos_sin_PH[positions_T].unsqueeze(1).chunk(2, dim=-1)
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
