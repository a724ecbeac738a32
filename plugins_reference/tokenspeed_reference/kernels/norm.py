"""Kernels of norm.rms and norm.add_rms. Legend: T tokens, D features."""

from __future__ import annotations

import torch


def rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Compute norm.rms; torch keeps the statistics in float32."""
    return torch.nn.functional.rms_norm(x_TD, (x_TD.shape[-1],), weight_D, eps)


def add_rms_norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute norm.add_rms."""
    total = residual_TD + x_TD
    return rms_norm(total, weight_D, eps=eps), total
