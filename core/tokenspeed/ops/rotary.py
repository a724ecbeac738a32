"""Rotary embedding. Legend: T tokens, N query heads, K kv heads, H head dim, P positions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.ops.declare import operator

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def _cases(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    import torch

    random = torch.Generator().manual_seed(seed)
    for tokens, heads, kv_heads, dim in ((1, 2, 1, 8), (5, 9, 3, 64), (16, 4, 4, 128)):
        angle = torch.arange(50)[:, None] * 10000.0 ** (-torch.arange(0, dim, 2) / dim)
        table = torch.cat([angle.cos(), angle.sin()], dim=-1)
        positions = torch.randint(0, 50, (tokens,), generator=random)
        q = torch.randn(tokens, heads, dim, generator=random)
        yield (q, torch.randn(tokens, kv_heads, dim, generator=random), positions, table), {}


@operator("rotary.apply", cases=_cases)
def apply_rotary(
    q_TNH: torch.Tensor, k_TKH: torch.Tensor, positions_T: torch.Tensor, cos_sin_PH: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate the pairs (x[i], x[i + H/2]) of each head by the angle of its position.

    Args:
        q_TNH: (T, N, H) float, device; last dim contiguous. May be overwritten.
        k_TKH: (T, K, H) the same. May be overwritten.
        positions_T: (T,) int64, device, each below P.
        cos_sin_PH: (P, H) float32: H/2 cosines, then H/2 sines of each position.
    Returns:
        (q, k) rotated, shapes and dtypes of the inputs.
    Source: RoFormer, Su et al. 2021; the half-split order is GPT-NeoX's.
    """
    import torch

    cos, sin = cos_sin_PH[positions_T].unsqueeze(1).to(q_TNH.dtype).chunk(2, dim=-1)

    def rotate(x: torch.Tensor) -> torch.Tensor:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)

    return rotate(q_TNH), rotate(k_TKH)
