"""Kernels of norm.rms and norm.add_rms. Legend: T tokens, D features."""

from __future__ import annotations

import torch


def rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Compute norm.rms with float32 statistics."""
    x = x_TD.float()
    # In place on the (T, 1) statistic: fewer and smaller operations than torch's own composite.
    scale = x.square().sum(-1, keepdim=True).mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
    return (x * scale).to(x_TD.dtype).mul_(weight_D)


def add_rms_norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute norm.add_rms."""
    total = residual_TD + x_TD
    return rms_norm(total, weight_D, eps=eps), total
