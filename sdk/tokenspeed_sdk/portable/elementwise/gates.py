# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Gates whose input is (gate | up) side by side. Legend: T tokens, F features."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_sdk.portable.launch import ordered

BLOCK = 1024
"""Features of a program: eight a thread, one load of 16 bytes in bf16 of each half. Small, so that
one token's row gives many programs."""


def silu_mul(gate_up_TF2: torch.Tensor) -> torch.Tensor:
    """Compute activation.silu_mul."""
    return _gated(gate_up_TF2, "silu")


def gelu_mul(gate_up_TF2: torch.Tensor, *, tanh: bool = False) -> torch.Tensor:
    """Compute activation.gelu_mul."""
    return _gated(gate_up_TF2, "gelu_tanh" if tanh else "gelu")


def _gated(gate_up_TF2: torch.Tensor, form: str) -> torch.Tensor:
    tokens, features = gate_up_TF2.shape[0], gate_up_TF2.shape[1] // 2
    result = torch.empty(tokens, features, dtype=gate_up_TF2.dtype, device=gate_up_TF2.device)
    if result.numel():
        block = min(BLOCK, triton.next_power_of_2(features))
        gate_halves[(tokens, triton.cdiv(features, block))](
            gate_up_TF2,
            result,
            gate_up_TF2.stride(0),
            features,
            FORM=form,
            BLOCK=block,
            **ordered(),
        )
    return result


@triton.jit
def gate_halves(
    gate_up_ptr,
    result_ptr,
    token_stride,
    features,
    FORM: tl.constexpr,
    BLOCK: tl.constexpr,
    ORDER: tl.constexpr,
):
    """Gate BLOCK features of one token."""
    if ORDER is not None:
        ORDER()
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < features
    row = gate_up_ptr + token * token_stride
    gate = tl.load(row + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(row + features + columns, mask=inside, other=0.0).to(tl.float32)
    if FORM == "silu":
        opened = gate / (1.0 + tl.exp(-gate))
    elif FORM == "gelu":
        opened = 0.5 * gate * (1.0 + tl.erf(gate * 0.7071067811865476))
    else:
        # (1 + tanh(z)) / 2 = 1 / (1 + exp(-2 z)), with z = sqrt(2 / pi) (g + 0.044715 g^3)
        twice = 1.5957691216057308 * (gate + 0.044715 * gate * gate * gate)
        opened = gate / (1.0 + tl.exp(-twice))
    result = (opened * up).to(result_ptr.dtype.element_ty)
    tl.store(result_ptr + token * features + columns, result, mask=inside)
