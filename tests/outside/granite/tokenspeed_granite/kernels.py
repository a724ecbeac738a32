"""Kernels, each by another road than the plain formula. Legend: docs of the operators."""

from __future__ import annotations

import torch

TILE_FEATURES = 256


def rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float) -> torch.Tensor:
    """norm.rms: squares are summed, and eps with them."""
    x = x_TD.float()
    width = x.shape[-1]
    squares = (x * x).sum(-1, keepdim=True)
    scale = (squares.add_(width * eps) / width).rsqrt_()
    return (x * scale).to(x_TD.dtype) * weight_D


def add_rms_norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """norm.add_rms."""
    total_TD = x_TD + residual_TD
    return rms_norm(total_TD, weight_D, eps=eps), total_TD


def silu_mul(gate_up_TF2: torch.Tensor) -> torch.Tensor:
    """activation.silu_mul: the sigmoid is half a hyperbolic tangent."""
    gate, up = gate_up_TF2.float().chunk(2, -1)
    return (gate * (torch.tanh(gate / 2) + 1) / 2 * up).to(gate_up_TF2.dtype)


def apply_rotary(x_TNH: torch.Tensor, cos_T1A: torch.Tensor, sin_T1A: torch.Tensor) -> torch.Tensor:
    """rotary.apply: pairs are complex numbers, turned by one product."""
    half = cos_T1A.shape[-1] // 2
    real, imaginary = x_TNH[..., :half].float(), x_TNH[..., half : 2 * half].float()
    turn = torch.complex(cos_T1A[..., half:].float(), sin_T1A[..., half:].float())
    turned = torch.complex(real, imaginary) * turn
    rest = x_TNH[..., 2 * half :].float()
    return torch.cat((turned.real, turned.imag, rest), -1).to(x_TNH.dtype)


def linear(
    x_TI: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None
) -> torch.Tensor:
    """linear.dense: output features in tiles of the card's width."""
    out_TO = x_TI.new_empty(x_TI.shape[0], weight_OI.shape[0])
    for out_To, weight_oI in zip(
        out_TO.split(TILE_FEATURES, 1), weight_OI.split(TILE_FEATURES), strict=True
    ):
        torch.mm(x_TI, weight_oI.T, out=out_To)
    return out_TO if bias_O is None else out_TO.add_(bias_O)
