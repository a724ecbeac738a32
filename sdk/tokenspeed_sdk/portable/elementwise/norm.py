# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Norms over rows: one kernel reads a row once, keeps it in registers, and writes it once.

Statistics are float32. Legend: T tokens (heads may stand behind them), D features.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tokenspeed_sdk.portable.elementwise.shapes import heads_of
from tokenspeed_sdk.portable.launch import ordered

TILE = 1024
"""Elements of a program that has several rows: eight a thread, one load of 16 bytes in bf16."""
WARPS = ((1024, 4), (2048, 8), (8192, 16))
"""(Padded features of a row up to, warps): 8 to 16 elements a thread, so that a single row, which
is all that a batch of one gives, has enough loads in flight. Beyond: LONGEST_WARPS."""
LONGEST_WARPS = 32


def rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Compute norm.rms."""
    return _normalised(x_TD, x_TD, weight_D, eps)[0]


def centred_rms_norm(x_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float) -> torch.Tensor:
    """Compute norm.centred_rms."""
    return _normalised(x_TD, x_TD, weight_D, eps, CENTRED=True)[0]


def add_rms_norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute norm.add_rms; the sum is rounded to its dtype before it is normalised."""
    return _normalised(x_TD, residual_TD, weight_D, eps, ADD=True)


def add_centred_rms_norm(
    x_TD: torch.Tensor, residual_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute norm.add_centred_rms; the sum is rounded to its dtype before it is normalised."""
    return _normalised(x_TD, residual_TD, weight_D, eps, ADD=True, CENTRED=True)


def gated_rms_norm(
    x_TD: torch.Tensor, gate_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """Compute norm.gated_rms."""
    return _normalised(x_TD, gate_TD, weight_D, eps, GATE="silu")[0]


def sigmoid_gated_rms_norm(
    x_TD: torch.Tensor, gate_TD: torch.Tensor, weight_D: torch.Tensor, *, eps: float
) -> torch.Tensor:
    """Compute norm.sigmoid_gated_rms."""
    return _normalised(x_TD, gate_TD, weight_D, eps, GATE="sigmoid")[0]


def _normalised(
    x_TD: torch.Tensor,
    other_TD: torch.Tensor,
    weight_D: torch.Tensor,
    eps: float,
    *,
    ADD: bool = False,
    CENTRED: bool = False,
    GATE: str = "",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Launch the kernel; the second result is the sum, where there is one."""
    normed = torch.empty(x_TD.shape, dtype=x_TD.dtype, device=x_TD.device)
    total = torch.empty_like(normed) if ADD else normed
    x_TD, rows, heads, *x_strides = heads_of(x_TD)
    other_TD, _, _, *other_strides = heads_of(other_TD)
    if normed.numel() == 0:
        return normed, total
    features = x_TD.shape[-1]
    rows_tile, columns, num_warps = tile_of(features)
    norm_rows[(triton.cdiv(rows, rows_tile),)](
        x_TD,
        other_TD,
        weight_D,
        normed,
        total,
        rows,
        heads,
        *x_strides,
        *other_strides,
        eps,
        FEATURES=features,
        ROWS=rows_tile,
        COLUMNS=columns,
        ADD=ADD,
        CENTRED=CENTRED,
        GATE=GATE,
        num_warps=num_warps,
        **ordered(),
    )
    return normed, total


def tile_of(features: int) -> tuple[int, int, int]:
    """Return (rows, columns, warps) of a program.

    A function of the features alone: the order in which a row is summed, and so its last bit, does
    not depend on how many rows there are.
    """
    columns = triton.next_power_of_2(features)
    if columns < TILE:
        return TILE // max(columns, 16), columns, 4
    for most, num_warps in WARPS:
        if columns <= most:
            return 1, columns, num_warps
    return 1, columns, LONGEST_WARPS


@triton.jit
def norm_rows(
    x_ptr,
    other_ptr,
    weight_ptr,
    normed_ptr,
    total_ptr,
    num_rows,
    num_heads,
    x_token_stride,
    x_head_stride,
    other_token_stride,
    other_head_stride,
    eps,
    FEATURES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    ADD: tl.constexpr,
    CENTRED: tl.constexpr,
    GATE: tl.constexpr,
    ORDER: tl.constexpr,
):
    """Normalise ROWS rows; `other` is the residual (ADD) or the gate."""
    rows = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    columns = tl.arange(0, COLUMNS)[None, :]
    inside = (rows < num_rows) & (columns < FEATURES)
    tokens, heads = rows // num_heads, rows % num_heads
    x_places = tokens * x_token_stride + heads * x_head_stride + columns
    other_places = tokens * other_token_stride + heads * other_head_stride + columns
    places = rows * FEATURES + columns
    weight = tl.load(weight_ptr + columns, mask=columns < FEATURES, other=0.0).to(tl.float32)
    if ORDER is not None:
        ORDER()
    x = tl.load(x_ptr + x_places, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        x += tl.load(other_ptr + other_places, mask=inside, other=0.0).to(tl.float32)
        rounded = x.to(total_ptr.dtype.element_ty)
        tl.store(total_ptr + places, rounded, mask=inside)
        x = rounded.to(tl.float32)
    if CENTRED:
        weight += 1.0
    scale = tl.rsqrt(tl.sum(x * x, axis=1, keep_dims=True) / FEATURES + eps)
    y = x * scale * weight
    if GATE != "":
        gate = tl.load(other_ptr + other_places, mask=inside, other=0.0).to(tl.float32)
        y /= 1.0 + tl.exp(-gate)
        if GATE == "silu":
            y *= gate
    tl.store(normed_ptr + places, y.to(normed_ptr.dtype.element_ty), mask=inside)
