"""Normalisation operators. Legend: T tokens, D features (any leading dims stand for T)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.ops.declare import operator

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch


def _rms_cases(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    import torch

    random = torch.Generator().manual_seed(seed)
    for shape in ((1, 8), (3, 64), (5, 576), (2, 3, 64), (7, 1)):
        x = torch.randn(shape, generator=random) * 3
        weight = torch.randn(shape[-1], generator=random)
        yield (x, weight), {"eps": 1e-5}


def _add_rms_cases(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    import torch

    random = torch.Generator().manual_seed(seed + 1)
    for (x, weight), options in _rms_cases(seed):
        yield (x, torch.randn(x.shape, generator=random), weight), options


@operator("norm.rms", cases=_rms_cases)
def rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Scale each row to unit root mean square, then by `weight_D`: x / sqrt(mean(x^2) + eps) * w.

    Statistics are float32 or wider.

    Args:
        x_TD: (..., D) float, device; heads may stand before D.
        weight_D: (D,) same dtype.
        eps: added to the mean square.
    Returns:
        (..., D), dtype and device of x.
    Source: Root Mean Square Layer Normalization, Zhang & Sennrich 2019.
    """
    return x_TD / (x_TD.square().mean(-1, keepdim=True) + eps).sqrt() * weight_D


@operator("norm.add_rms", cases=_add_rms_cases)
def add_rms_norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add `x_TD` to the residual stream and normalise the sum as `norm.rms` does.

    Args:
        x_TD: (T, D) float, device.
        residual_TD: (T, D) same dtype; read only.
        weight_D: (D,) same dtype.
    Returns:
        (normalised sum, sum), both (T, D).
    """
    total = residual_TD + x_TD
    return total / (total.square().mean(-1, keepdim=True) + eps).sqrt() * weight_D, total


@operator("norm.centred_rms", cases=_rms_cases)
def centred_rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Normalise as `norm.rms` does with the weight 1 + `weight_D`, summed in float32 or wider.

    Args:
        x_TD: (..., D) float, device; heads may stand before D.
        weight_D: (D,) same dtype, around zero.
        eps: added to the mean square.
    Returns:
        (..., D), dtype and device of x.
    """
    return x_TD / (x_TD.square().mean(-1, keepdim=True) + eps).sqrt() * (1 + weight_D)


@operator("norm.add_centred_rms", cases=_add_rms_cases)
def add_centred_rms_norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add `x_TD` to the residual stream and normalise the sum as `norm.centred_rms` does.

    Args:
        x_TD: (T, D) float, device.
        residual_TD: (T, D) same dtype; read only.
        weight_D: (D,) same dtype.
    Returns:
        (normalised sum, sum), both (T, D).
    """
    total = residual_TD + x_TD
    return total / (total.square().mean(-1, keepdim=True) + eps).sqrt() * (1 + weight_D), total


@operator("norm.gated_rms", cases=_add_rms_cases)
def gated_rms_norm(
    x_TD: torch.Tensor, gate_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """Normalise as `norm.rms` does, then gate: norm(x) w silu(gate).

    Args:
        x_TD: (..., D) float, device; heads may stand before D.
        gate_TD: the same shape and dtype.
        weight_D: (D,) same dtype.
        eps: added to the mean square.
    Returns:
        (..., D), dtype and device of x.
    """
    normed = x_TD / (x_TD.square().mean(-1, keepdim=True) + eps).sqrt() * weight_D
    return normed * gate_TD / (1 + (-gate_TD).exp())
