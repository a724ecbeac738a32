"""Kernels of gated activations. Legend: T tokens, F hidden features of the MLP."""

from __future__ import annotations

import torch


def silu_mul(gate_up_TF2: torch.Tensor) -> torch.Tensor:
    """Compute silu(first half) * second half."""
    gate, up = gate_up_TF2.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate).mul_(up)


def sigmoid_mul(x_TF: torch.Tensor, gate_TF: torch.Tensor) -> torch.Tensor:
    """Compute x * sigmoid(gate), the gate in float64 as moe.add_shared says."""
    return x_TF * torch.sigmoid(gate_TF.double()).type_as(x_TF)
