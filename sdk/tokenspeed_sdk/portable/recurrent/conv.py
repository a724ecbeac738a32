# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Causal convolution over a row's inputs and the past in its state, then silu.

Longer rows take two launches: the state that the first chunk of a row reads is overwritten by what
its last chunk leaves. Legend: T tokens, C channels, B blocks of the state, W taps, P = W - 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import triton
import triton.language as tl

from tokenspeed_sdk.portable.recurrent.rows import CHUNK_TOKENS, cut_rows

if TYPE_CHECKING:
    from tokenspeed_sdk import StateRows

__all__ = ["causal_conv"]

CHANNELS = 128
"""Of a program."""
TOKENS = 16
"""Of a program's steps through a chunk."""


@triton.jit
def conv_step(
    x,
    weight,
    state,
    out,
    read,
    write,
    singles,
    num_channels,
    x_token,
    out_token,
    weight_channel,
    weight_tap,
    state_block,
    state_channel,
    state_place,
    TAPS: tl.constexpr,
    ALL: tl.constexpr,
    C: tl.constexpr,
):
    """Convolve one row of one token; ALL: every row of the step is one."""
    row = tl.program_id(0).to(tl.int64)
    token = row
    if not ALL:
        single = singles + row * 2
        row = tl.load(single).to(tl.int64)
        token = tl.load(single + 1).to(tl.int64)
    channel = tl.program_id(1) * C + tl.arange(0, C)
    is_channel = channel < num_channels
    source = tl.load(read + row)
    is_read = channel < tl.where(source >= 0, num_channels, 0)
    past = state + tl.maximum(source, 0) * state_block + channel * state_channel
    target = state + tl.load(write + row) * state_block + channel * state_channel
    newest = tl.load(x + token * x_token + channel, mask=is_channel, other=0.0).to(tl.float32)
    total = tl.zeros((C,), tl.float32)
    for tap in tl.static_range(TAPS):
        if tap < TAPS - 1:
            value = tl.load(past + tap * state_place, mask=is_read, other=0.0)
        else:
            value = newest
        factor = tl.load(
            weight + channel * weight_channel + tap * weight_tap, mask=is_channel, other=0.0
        ).to(tl.float32)
        total += value * factor
        if tap > 0:  # read above, by the same thread, before it is written
            tl.store(target + (tap - 1) * state_place, value, mask=is_channel)
    result = total / (1 + tl.exp(-total))
    tl.store(out + token * out_token + channel, result.to(out.dtype.element_ty), mask=is_channel)


@triton.jit
def conv_chunk(
    x,
    weight,
    state,
    out,
    read,
    chunks,
    starts,
    num_channels,
    x_token,
    out_token,
    weight_channel,
    weight_tap,
    state_block,
    state_channel,
    state_place,
    TAPS: tl.constexpr,
    T: tl.constexpr,
    C: tl.constexpr,
):
    """Convolve T tokens of a chunk."""
    chunk = chunks + tl.program_id(0) * 3
    row = tl.load(chunk).to(tl.int64)
    first = tl.load(chunk + 1)
    size = tl.load(chunk + 2)
    row_start = tl.load(starts + row)
    channel_C = tl.program_id(1) * C + tl.arange(0, C)
    is_channel_C = channel_C < num_channels
    source = tl.load(read + row)
    is_read_C = channel_C < tl.where(source >= 0, num_channels, 0)
    past_C = state + tl.maximum(source, 0) * state_block + channel_C * state_channel
    within_T = tl.program_id(2) * T + tl.arange(0, T)
    token_T = (first + within_T).to(tl.int64)
    is_in_TC = (within_T < size)[:, None] & is_channel_C[None, :]
    total_TC = tl.zeros((T, C), tl.float32)
    for tap in tl.static_range(TAPS):
        place_T = first + within_T - row_start + (tap - TAPS + 1)
        is_now_TC = is_in_TC & (place_T >= 0)[:, None]
        now_TC = tl.load(
            x + (token_T + (tap - TAPS + 1))[:, None] * x_token + channel_C[None, :],
            mask=is_now_TC,
            other=0.0,
        ).to(tl.float32)
        is_past_TC = is_in_TC & (place_T < 0)[:, None] & is_read_C[None, :]
        past_TC = tl.load(
            past_C[None, :] + (TAPS - 1 + place_T)[:, None] * state_place,
            mask=is_past_TC,
            other=0.0,
        )
        factor_C = tl.load(
            weight + channel_C * weight_channel + tap * weight_tap, mask=is_channel_C, other=0.0
        ).to(tl.float32)
        total_TC += (now_TC + past_TC) * factor_C[None, :]
    result_TC = total_TC / (1 + tl.exp(-total_TC))
    tl.store(
        out + token_T[:, None] * out_token + channel_C[None, :],
        result_TC.to(out.dtype.element_ty),
        mask=is_in_TC,
    )


@triton.jit
def conv_leave(
    x,
    state,
    read,
    write,
    longer,
    starts,
    num_channels,
    x_token,
    state_block,
    state_channel,
    state_place,
    TAPS: tl.constexpr,
    C: tl.constexpr,
):
    """Write what a longer row leaves: its last TAPS - 1 inputs, of the past where it has fewer."""
    row = tl.load(longer + tl.program_id(0) * 3).to(tl.int64)
    start = tl.load(starts + row).to(tl.int64)
    size = tl.load(starts + row + 1) - start
    channel = tl.program_id(1) * C + tl.arange(0, C)
    is_channel = channel < num_channels
    source = tl.load(read + row)
    past = state + tl.maximum(source, 0) * state_block + channel * state_channel
    target = state + tl.load(write + row) * state_block + channel * state_channel
    for number in tl.static_range(
        TAPS - 1
    ):  # oldest first: what is read lies behind what is written
        place = size - (TAPS - 1) + number
        now = tl.load(
            x + (start + place) * x_token + channel,
            mask=channel < tl.where(place >= 0, num_channels, 0),
            other=0.0,
        ).to(tl.float32)
        old = tl.load(
            past + (TAPS - 1 + place) * state_place,
            mask=channel < tl.where((place < 0) & (source >= 0), num_channels, 0),
            other=0.0,
        )
        tl.store(target + number * state_place, now + old, mask=is_channel)


def causal_conv(
    x_TC: torch.Tensor,
    weight_CW: torch.Tensor,
    state_BCP: torch.Tensor,
    rows: StateRows,
    query_start: Any,
) -> torch.Tensor:
    """Compute conv.causal_silu; graph-safe where every row has one token."""
    x_TC = x_TC if x_TC.stride(1) == 1 else x_TC.contiguous()
    num_tokens, num_channels = x_TC.shape
    out_TC = torch.empty((num_tokens, num_channels), dtype=x_TC.dtype, device=x_TC.device)
    if num_tokens == 0:
        return out_TC
    taps, width = weight_CW.shape[1], triton.cdiv(num_channels, CHANNELS)
    cut = cut_rows(query_start, num_tokens, x_TC.device)
    num_singles = num_tokens if cut is None else len(cut.singles)
    strides = (x_TC.stride(0), out_TC.stride(0), *weight_CW.stride(), *state_BCP.stride())
    if num_singles:
        conv_step[(num_singles, width)](
            x_TC,
            weight_CW,
            state_BCP,
            out_TC,
            rows.read_R,
            rows.write_R,
            rows.read_R if cut is None else cut.singles,
            num_channels,
            *strides,
            TAPS=taps,
            ALL=cut is None,
            C=CHANNELS,
            num_warps=4,
        )
    if cut is None or not len(cut.longer):
        return out_TC
    conv_chunk[(len(cut.chunks), width, CHUNK_TOKENS // TOKENS)](
        x_TC,
        weight_CW,
        state_BCP,
        out_TC,
        rows.read_R,
        cut.chunks,
        cut.starts,
        num_channels,
        *strides,
        TAPS=taps,
        T=TOKENS,
        C=CHANNELS,
        num_warps=4,
    )
    conv_leave[(len(cut.longer), width)](
        x_TC,
        state_BCP,
        rows.read_R,
        rows.write_R,
        cut.longer,
        cut.starts,
        num_channels,
        x_TC.stride(0),
        *state_BCP.stride(),
        TAPS=taps,
        C=CHANNELS,
        num_warps=4,
    )
    return out_TC
