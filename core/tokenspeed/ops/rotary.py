"""Rotary embedding. Legend: T tokens, N heads, H head dim, A rotated dims, P positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.ops.declare import operator

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def _cases(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    import torch

    random = torch.Generator().manual_seed(seed)
    for tokens, heads, dim, turned in ((1, 3, 8, 8), (5, 12, 64, 64), (16, 4, 128, 32)):
        angle = torch.randn(tokens, 1, turned // 2, generator=random) * 50
        sin_T1A = torch.cat([-angle.sin(), angle.sin()], dim=-1)
        x = torch.randn(tokens, heads + 1, dim, generator=random)[:, :heads]
        yield (x, torch.cat([angle.cos()] * 2, dim=-1), sin_T1A), {}


@operator("rotary.apply", cases=_cases)
def apply_rotary(x_TNH: torch.Tensor, cos_T1A: torch.Tensor, sin_T1A: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs (x[i], x[i + A/2]) of each head by the angle of its token.

    Dims from A on stay as they are. Cosines and sines are looked up once a step, spread over both
    halves, and serve every layer.

    Args:
        x_TNH: (T, N, H) float, device; heads of a token contiguous, query and key heads may stand
            beside each other. May be overwritten.
        cos_T1A: (T, 1, A) same dtype, A at most H; both halves alike.
        sin_T1A: (T, 1, A) same dtype; the first half negated.
    Returns:
        (T, N, H) rotated, dtype of x.
    Source: RoFormer, Su et al. 2021; the half-split order is GPT-NeoX's.
    """
    import torch

    num_turned = cos_T1A.shape[-1]
    turned, rest = x_TNH[..., :num_turned], x_TNH[..., num_turned:]
    first, second = turned.chunk(2, dim=-1)
    turned = turned * cos_T1A + torch.cat([second, first], dim=-1) * sin_T1A
    return torch.cat([turned, rest], dim=-1)


def _angle_cases(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    import torch

    random = torch.Generator().manual_seed(seed)
    for tokens, dim in ((1, 8), (5, 64), (16, 128)):
        table_PA = torch.randn(50, dim, generator=random)
        yield (torch.randint(0, 50, (tokens,), generator=random), table_PA), {}


@operator("rotary.angles", cases=_angle_cases)
def rotary_angles(
    positions_T: torch.Tensor, cos_sin_PA: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Look up a step's cosines and sines, spread over both halves for `rotary.apply`.

    Args:
        positions_T: (T,) int64, device, each below P.
        cos_sin_PA: (P, A) float, device: A/2 cosines, then A/2 sines of each position.
    Returns:
        (T, 1, A) cosines, both halves alike, and (T, 1, A) sines, the first half negated; dtype of
        the table.
    """
    import torch

    cos, sin = cos_sin_PA[positions_T].unsqueeze(1).chunk(2, dim=-1)
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
