"""Kernel of activation.silu_mul. Legend: T tokens, F hidden features of the MLP."""

from __future__ import annotations

import torch


def silu_mul(gate_up_TF2: torch.Tensor) -> torch.Tensor:
    """Compute silu(first half) * second half."""
    gate, up = gate_up_TF2.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate).mul_(up)
