"""Rotary embedding. Legend: T tokens, N heads, H head dim, A rotated dims, P positions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.contracts.kernel import Case
from tokenspeed.ops.declare import EXACT, operator
from tokenspeed.ops.draw import Draw

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tokenspeed.contracts.kernel import Domain


def _cases(domain: Domain) -> Iterator[Case]:
    import torch

    draw = Draw(domain)
    for head_dim in domain.values("head_dim", 2, 6, 64, 80, 128):
        traits = {"head_dim": head_dim}
        for tokens, heads, turned in ((0, 2, head_dim), (1, 3, head_dim), (5, 12, head_dim),
                                      (16, 4, head_dim // 4 * 2)):  # fmt: skip
            if not turned:
                continue
            angle = draw.wide(tokens, 1, turned // 2, scale=50)
            cos = torch.cat([angle.cos()] * 2, dim=-1).to(draw.dtype)
            sin = torch.cat([-angle.sin(), angle.sin()], dim=-1).to(draw.dtype)
            name = f"{tokens} x {heads} heads of {head_dim}, {turned} turned"
            x = draw.beside(tokens, heads, head_dim, axis=1)
            yield Case(name, (x, cos, sin), traits=traits)


@operator(
    "rotary.apply",
    cases=_cases,
    overwrites=("x_TNH",),
    tokens=("x_TNH", "cos_T1A", "sin_T1A"),
    placement="T N H!, T 1 A!, T 1 A! -> T N H!",
)
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


def _angle_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for head_dim in domain.values("head_dim", 2, 64, 80, 128):
        traits = {"head_dim": head_dim}
        for tokens in (0, 1, 16):
            positions_T, table_PA = draw.integers(0, 50, tokens), draw.floats(50, head_dim)
            yield Case(f"{tokens} of {head_dim}", (positions_T, table_PA), traits=traits)


@operator(
    "rotary.angles",
    tolerance=EXACT,
    cases=_angle_cases,
    tokens=("positions_T",),
    placement="T, _ A! -> T 1 A!, T 1 A!",
)
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
    Source: RoFormer, Su et al. 2021, section 3.4.2.
    """
    import torch

    cos, sin = cos_sin_PA[positions_T].unsqueeze(1).chunk(2, dim=-1)
    return torch.cat([cos, cos], dim=-1), torch.cat([-sin, sin], dim=-1)
