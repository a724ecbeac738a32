"""Kernels of norm.rms and norm.add_rms. Legend: T tokens, D features."""

from __future__ import annotations

import functools

import torch
from torch.linalg import vector_norm


def rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Compute norm.rms with float32 statistics."""
    # One reduction and two operations on the (T, 1) statistic: half the calls of torch's composite.
    length_T1 = vector_norm(x_TD, dim=-1, keepdim=True, dtype=torch.float32)
    floor = _constant(eps, x_TD.device)
    scale_T1 = torch.addcmul(floor, length_T1, length_T1, value=1 / x_TD.shape[-1]).rsqrt_()
    return (x_TD * scale_T1).type_as(x_TD).mul_(weight_D)


def add_rms_norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute norm.add_rms."""
    total = residual_TD + x_TD
    return rms_norm(total, weight_D, eps=eps), total


@functools.cache
def _constant(value: float, device: torch.device) -> torch.Tensor:
    return torch.tensor(value, device=device)
