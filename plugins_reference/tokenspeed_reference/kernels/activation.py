"""Kernels of activations. Legend: T tokens, F features."""

from __future__ import annotations

import torch


def silu_mul(gate_up_TF2: torch.Tensor) -> torch.Tensor:
    """Compute silu(first half) * second half."""
    gate, up = gate_up_TF2.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate).mul_(up)


def gelu_mul(gate_up_TF2: torch.Tensor, *, tanh: bool = False) -> torch.Tensor:
    """Compute gelu(first half) * second half, exactly or by the tangent's approximation."""
    gate, up = gate_up_TF2.chunk(2, dim=-1)
    if tanh:
        return torch.nn.functional.gelu(gate, approximate="tanh").mul_(up)
    # In float64, as `sigmoid` below.
    return torch.nn.functional.gelu(gate.double()).type_as(up).mul_(up)


def sigmoid_mul(x_TF: torch.Tensor, gate_TF: torch.Tensor) -> torch.Tensor:
    """Compute x * sigmoid(gate)."""
    return x_TF * sigmoid(gate_TF)


def sigmoid(x: torch.Tensor) -> torch.Tensor:
    """Return the sigmoid, of each element the same wherever it stands.

    In float64: torch's float32 exp rounds otherwise at the end of a tensor than in its middle, so
    that a token's gate would depend on how many tokens stand beside it.
    """
    return x.double().sigmoid().type_as(x)


def scale(x_TF: torch.Tensor, *, factor: float) -> torch.Tensor:
    """Compute x * factor."""
    return x_TF * factor


def softcap(x_TF: torch.Tensor, *, cap: float) -> torch.Tensor:
    """Compute cap * tanh(x / cap), in float64 as `sigmoid`."""
    return (x_TF.double() / cap).tanh_().mul_(cap).type_as(x_TF)
