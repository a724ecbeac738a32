"""Kernels of normalisations. Legend: T tokens, D features."""

from __future__ import annotations

import functools

import torch
from torch.linalg import vector_norm


def rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Compute norm.rms with float32 statistics."""
    return (x_TD * _inverse_length(x_TD, eps)).type_as(x_TD).mul_(weight_D)


def _inverse_length(x_TD: torch.Tensor, eps: float) -> torch.Tensor:
    """Return 1 / sqrt(mean(x^2) + eps) of each row, (T, 1) float32."""
    # One reduction and two operations on the (T, 1) statistic: half the calls of torch's composite.
    length_T1 = vector_norm(x_TD, dim=-1, keepdim=True, dtype=torch.float32)
    floor = _constant(eps, x_TD.device)
    return torch.addcmul(floor, length_T1, length_T1, value=1 / x_TD.shape[-1]).rsqrt_()


def add_rms_norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute norm.add_rms."""
    total = residual_TD + x_TD
    return rms_norm(total, weight_D, eps=eps), total


def centred_rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Compute norm.centred_rms in float32."""
    return (x_TD * _inverse_length(x_TD, eps) * (1 + weight_D.float())).type_as(x_TD)


def add_centred_rms_norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute norm.add_centred_rms."""
    total = residual_TD + x_TD
    return centred_rms_norm(total, weight_D, eps=eps), total


def gated_rms_norm(
    x_TD: torch.Tensor, gate_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """Compute norm.gated_rms in float32, the gate in float64 as activation.sigmoid says."""
    normed = x_TD * _inverse_length(x_TD, eps) * weight_D.float()
    return (normed * torch.nn.functional.silu(gate_TD.double()).float()).type_as(x_TD)


def sigmoid_gated_rms_norm(
    x_TD: torch.Tensor, gate_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """Compute norm.sigmoid_gated_rms in float32, the gate in float64 as activation.sigmoid says."""
    normed = x_TD * _inverse_length(x_TD, eps) * weight_D.float()
    return (normed * torch.sigmoid(gate_TD.double()).float()).type_as(x_TD)


@functools.cache
def _constant(value: float, device: torch.device) -> torch.Tensor:
    return torch.tensor(value, device=device)
