"""Native kernels for float32 on the CPU: each wrapper makes the result and hands over addresses.

They compute what the plain kernels beside this file define; `native/` has them in C++. A row's
result never depends on the rows beside it, but for `linear` above FEW_ROWS.
Legend: T tokens, D features, N heads, H head dim, A rotated dims, F hidden features, O outputs,
I inputs.
"""

from __future__ import annotations

import torch
from torch.nn.functional import linear as torch_linear

# After torch: both must find one OpenMP runtime in the process, and torch brings its own.
from tokenspeed_reference import _cpu

FEW_ROWS = 32
"""Up to here reading the weight limits a product; above, torch is faster, which copies it first."""


def rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Compute norm.rms; heads may lie in a wider tensor."""
    if x_TD.dim() == 3 and x_TD.stride(2) == 1:
        outer, inner, features = x_TD.shape
        outer_stride, inner_stride, _ = x_TD.stride()
    else:
        x_TD = x_TD.contiguous()
        features = x_TD.shape[-1]
        outer, inner = x_TD.numel() // features, 1
        outer_stride, inner_stride = features, 0
    out = torch.empty(x_TD.shape)
    _cpu.norm(
        out.data_ptr(),
        x_TD.data_ptr(),
        weight_D.data_ptr(),
        outer,
        inner,
        outer_stride,
        inner_stride,
        features,
        eps,
        torch.get_num_threads(),
    )
    return out


def add_rms_norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute norm.add_rms in one pass."""
    x_TD, residual_TD = x_TD.contiguous(), residual_TD.contiguous()
    out, total = torch.empty_like(x_TD), torch.empty_like(x_TD)
    features = x_TD.shape[-1]
    _cpu.add_norm(
        out.data_ptr(),
        total.data_ptr(),
        x_TD.data_ptr(),
        residual_TD.data_ptr(),
        weight_D.data_ptr(),
        x_TD.numel() // features,
        features,
        eps,
        torch.get_num_threads(),
    )
    return out, total


def silu_mul(gate_up_TF2: torch.Tensor) -> torch.Tensor:
    """Compute silu(first half) * second half."""
    gate_up_TF2 = gate_up_TF2.contiguous()
    tokens, features = gate_up_TF2.shape[0], gate_up_TF2.shape[1] // 2
    out = torch.empty(tokens, features)
    threads = torch.get_num_threads()
    _cpu.silu_mul(out.data_ptr(), gate_up_TF2.data_ptr(), tokens, features, threads)
    return out


def apply_rotary(x_TNH: torch.Tensor, cos_T1A: torch.Tensor, sin_T1A: torch.Tensor) -> torch.Tensor:
    """Rotate all heads in place."""
    tokens, heads, head_dim = x_TNH.shape
    stride, head_stride, _ = x_TNH.stride()
    assert head_stride == head_dim or heads == 1, "heads of a token lie side by side"
    _cpu.rotary(
        x_TNH.data_ptr(),
        cos_T1A.data_ptr(),
        sin_T1A.data_ptr(),
        tokens,
        heads,
        head_dim,
        cos_T1A.shape[2],
        stride,
        torch.get_num_threads(),
    )
    return x_TNH


def linear(
    x_TI: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None
) -> torch.Tensor:
    """Multiply few rows natively, many with torch."""
    if x_TI.shape[0] > FEW_ROWS:
        return torch_linear(x_TI, weight_OI, bias_O)
    return linear_invariant(x_TI, weight_OI, bias_O)


def linear_invariant(
    x_TI: torch.Tensor, weight_OI: torch.Tensor, bias_O: torch.Tensor | None = None
) -> torch.Tensor:
    """Multiply; bitwise the same in every batch."""
    if x_TI.stride(1) != 1:
        x_TI = x_TI.contiguous()
    outputs, inputs = weight_OI.shape
    rows = x_TI.shape[0]
    y_TO = torch.empty(rows, outputs)
    _cpu.linear(
        y_TO.data_ptr(),
        x_TI.data_ptr(),
        weight_OI.data_ptr(),
        0 if bias_O is None else bias_O.data_ptr(),
        rows,
        x_TI.stride(0),
        outputs,
        inputs,
        torch.get_num_threads(),
    )
    return y_TO
