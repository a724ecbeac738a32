# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Computations of each element by itself. Legend: T tokens (heads may follow), F, D features."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_sdk.portable.elementwise.shapes import heads_of

BLOCK = 1024
"""Elements of a program: eight a thread, one load of 16 bytes in bf16."""


def sigmoid_mul(x_TF: torch.Tensor, gate_TF: torch.Tensor) -> torch.Tensor:
    """Compute activation.sigmoid_mul."""
    return _each(x_TF, gate_TF, 0.0, "sigmoid_mul")


def scale(x_TF: torch.Tensor, *, factor: float) -> torch.Tensor:
    """Compute activation.scale."""
    return _each(x_TF, x_TF, factor, "scale")


def softcap(x_TF: torch.Tensor, *, cap: float) -> torch.Tensor:
    """Compute activation.softcap."""
    return _each(x_TF, x_TF, cap, "softcap")


def add_shared(
    routed_TD: torch.Tensor, shared_TD: torch.Tensor, gate_T1: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute moe.add_shared."""
    result = torch.empty(routed_TD.shape, dtype=routed_TD.dtype, device=routed_TD.device)
    tokens, features = result.shape
    if result.numel():
        block = min(BLOCK, triton.next_power_of_2(features))
        add_gated[(tokens, triton.cdiv(features, block))](
            routed_TD,
            shared_TD,
            routed_TD if gate_T1 is None else gate_T1,
            result,
            features,
            routed_TD.stride(0),
            shared_TD.stride(0),
            0 if gate_T1 is None else gate_T1.stride(0),
            GATED=gate_T1 is not None,
            BLOCK=block,
        )
    return result


def _each(x_TF: torch.Tensor, other_TF: torch.Tensor, number: float, form: str) -> torch.Tensor:
    result = torch.empty(x_TF.shape, dtype=x_TF.dtype, device=x_TF.device)
    if not result.numel():
        return result
    x_TF, rows, heads, *x_strides = heads_of(x_TF)
    other_TF, _, _, *other_strides = heads_of(other_TF)
    features = x_TF.shape[-1]
    block = min(BLOCK, triton.next_power_of_2(features))
    each_element[(rows, triton.cdiv(features, block))](
        x_TF,
        other_TF,
        result,
        heads,
        features,
        *x_strides,
        *other_strides,
        number,
        FORM=form,
        BLOCK=block,
    )
    return result


@triton.jit
def each_element(
    x_ptr,
    other_ptr,
    result_ptr,
    num_heads,
    features,
    x_token_stride,
    x_head_stride,
    other_token_stride,
    other_head_stride,
    number,
    FORM: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Compute BLOCK elements of one row; `number` is the factor or the cap."""
    row = tl.program_id(0).to(tl.int64)
    token, head = row // num_heads, row % num_heads
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < features
    x_row = x_ptr + token * x_token_stride + head * x_head_stride
    x = tl.load(x_row + columns, mask=inside, other=0.0).to(tl.float32)
    if FORM == "sigmoid_mul":
        other_row = other_ptr + token * other_token_stride + head * other_head_stride
        gate = tl.load(other_row + columns, mask=inside, other=0.0).to(tl.float32)
        y = x / (1.0 + tl.exp(-gate))
    elif FORM == "scale":
        y = x * number
    else:
        y = _tanh(x / number) * number
    tl.store(result_ptr + row * features + columns, y.to(result_ptr.dtype.element_ty), mask=inside)


@triton.jit
def add_gated(
    routed_ptr,
    shared_ptr,
    gate_ptr,
    result_ptr,
    features,
    routed_stride,
    shared_stride,
    gate_stride,
    GATED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add BLOCK features of one token's shared expert, weighed by its gate."""
    token = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < features
    routed_row, shared_row = routed_ptr + token * routed_stride, shared_ptr + token * shared_stride
    routed = tl.load(routed_row + columns, mask=inside, other=0.0).to(tl.float32)
    shared = tl.load(shared_row + columns, mask=inside, other=0.0).to(tl.float32)
    if GATED:
        shared /= 1.0 + tl.exp(-tl.load(gate_ptr + token * gate_stride).to(tl.float32))
    total = (routed + shared).to(result_ptr.dtype.element_ty)
    tl.store(result_ptr + token * features + columns, total, mask=inside)


@triton.jit
def _tanh(x):
    """Return tanh, of small numbers by its series: the other form cancels there."""
    square = x * x
    series = 1.0 + square * (
        -0.3333333333 + square * (0.1333333333 + square * (-0.0539682540 + square * 0.0218694885))
    )
    far = 1.0 - 2.0 / (tl.exp(2.0 * tl.abs(x)) + 1.0)
    return tl.where(tl.abs(x) < 0.25, x * series, tl.where(x < 0, -far, far))
