"""Launches of both delta rules: steps for rows of one token, chunks for longer rows.

Legend: T tokens, J key heads, N value heads, K key dim, V value dim, B blocks of the state.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from tokenspeed_sdk.portable.launch import IS_INTERPRETED
from tokenspeed_sdk.portable.recurrent.chunks import carry_chunks, relate_chunk
from tokenspeed_sdk.portable.recurrent.rows import CHUNK_TOKENS, Cut, cut_rows
from tokenspeed_sdk.portable.recurrent.step import STEP_VALUES, delta_step

if TYPE_CHECKING:
    from tokenspeed_sdk import StateRows

__all__ = ["gated_delta_rule", "kda_delta_rule"]

LEAST_DIM = 16
"""Of a matrix product's operand."""
RELATING_WARPS = 8
"""Of a program that relates a chunk: 4 spill eighteen times as much at 128 dims. And all of 4 read
the same operands, whose places are then computed once for all of them: of tiles with lines of two
lengths, heads of fewer than 64 dims in half precision, the assembler that triton 3.6 brings takes
some from a wrong register, and they lie outside of the program's memory."""
CARRIED_VALUES = 32
"""Value dims of a program that carries a state: few, so that one row's heads fill a device."""


def gated_delta_rule(
    q_TJK: torch.Tensor,
    k_TJK: torch.Tensor,
    v_TNV: torch.Tensor,
    log_decay_TN: torch.Tensor,
    beta_TN: torch.Tensor,
    state_BNKV: torch.Tensor,
    rows: StateRows,
    query_start: Any,
) -> torch.Tensor:
    """Compute linear_attention.gated_delta; graph-safe where every row has one token."""
    inputs = (q_TJK, k_TJK, v_TNV, log_decay_TN, beta_TN)
    return _run(inputs, state_BNKV, rows, query_start, has_channels=False)


def kda_delta_rule(
    q_TJK: torch.Tensor,
    k_TJK: torch.Tensor,
    v_TNV: torch.Tensor,
    log_decay_TNK: torch.Tensor,
    beta_TN: torch.Tensor,
    state_BNKV: torch.Tensor,
    rows: StateRows,
    query_start: Any,
) -> torch.Tensor:
    """Compute kda.delta_rule; graph-safe where every row has one token."""
    inputs = (q_TJK, k_TJK, v_TNV, log_decay_TNK, beta_TN)
    return _run(inputs, state_BNKV, rows, query_start, has_channels=True)


def _run(
    inputs: tuple[torch.Tensor, ...],
    state_BNKV: torch.Tensor,
    rows: StateRows,
    query_start: Any,
    *,
    has_channels: bool,
) -> torch.Tensor:
    inputs = tuple(x if x.stride(-1) == 1 else x.contiguous() for x in inputs)
    v_TNV = inputs[2]
    out_TNV = torch.empty(v_TNV.shape, dtype=v_TNV.dtype, device=v_TNV.device)
    num_tokens = v_TNV.shape[0]
    if num_tokens == 0:
        return out_TNV
    cut = cut_rows(query_start, num_tokens, v_TNV.device)
    if cut is None or len(cut.singles):
        _step(inputs, state_BNKV, rows, cut, out_TNV, has_channels)
    if cut is not None and len(cut.longer):
        _chunks(inputs, state_BNKV, rows, cut, out_TNV, has_channels)
    return out_TNV


def _step(
    inputs: tuple[torch.Tensor, ...],
    state_BNKV: torch.Tensor,
    rows: StateRows,
    cut: Cut | None,
    out_TNV: torch.Tensor,
    has_channels: bool,
) -> None:
    num_heads, key_dim, value_dim = state_BNKV.shape[1:]
    num_rows = len(out_TNV) if cut is None else len(cut.singles)
    values = min(STEP_VALUES, _padded(value_dim))
    delta_step[(-(-value_dim // values), num_heads, num_rows)](
        *inputs,
        state_BNKV,
        out_TNV,
        rows.read_R,
        rows.write_R,
        rows.read_R if cut is None else cut.singles,
        num_heads // inputs[1].shape[1],
        key_dim**-0.5,
        *_strides(inputs),
        *out_TNV.stride()[:2],
        *state_BNKV.stride()[:3],
        KEYS=key_dim,
        VALUES=value_dim,
        K=_padded(key_dim),
        V=values,
        CHANNELS=has_channels,
        ALL=cut is None,
        num_warps=4,
    )


def _chunks(
    inputs: tuple[torch.Tensor, ...],
    state_BNKV: torch.Tensor,
    rows: StateRows,
    cut: Cut,
    out_TNV: torch.Tensor,
    has_channels: bool,
) -> None:
    num_heads, key_dim, value_dim = state_BNKV.shape[1:]
    keys, values, chunk = _padded(key_dim), _padded(value_dim), CHUNK_TOKENS
    num_chunks, dtype = len(cut.chunks), out_TNV.dtype
    widths = (values, keys, chunk, keys, keys)
    u, w, mixed, queries, kept_keys = (
        out_TNV.new_empty(num_chunks, num_heads, chunk, width) for width in widths
    )
    kept = out_TNV.new_empty(
        (num_chunks, num_heads, keys if has_channels else 1), dtype=torch.float32
    )
    relate_chunk[(num_chunks, num_heads)](
        *inputs,
        cut.chunks,
        u,
        w,
        mixed,
        queries,
        kept_keys,
        kept,
        num_heads // inputs[1].shape[1],
        key_dim**-0.5,
        *_strides(inputs),
        KEYS=key_dim,
        VALUES=value_dim,
        K=keys,
        V=values,
        C=chunk,
        CHANNELS=has_channels,
        WIDE=IS_INTERPRETED,
        PRECISION="ieee" if dtype == torch.float32 else "tf32",
        num_warps=RELATING_WARPS,
        num_stages=1,
    )
    carried = min(CARRIED_VALUES, values)
    carry_chunks[(-(-value_dim // carried), num_heads, len(cut.longer))](
        u,
        w,
        mixed,
        queries,
        kept_keys,
        kept,
        state_BNKV,
        out_TNV,
        cut.chunks,
        cut.longer,
        rows.read_R,
        rows.write_R,
        *out_TNV.stride()[:2],
        *state_BNKV.stride()[:3],
        KEYS=key_dim,
        VALUES=value_dim,
        K=keys,
        WIDTH=values,
        V=carried,
        C=chunk,
        CHANNELS=has_channels,
        WIDE=IS_INTERPRETED,
        num_warps=4,
        num_stages=2,
    )


def _strides(inputs: tuple[torch.Tensor, ...]) -> tuple[int, ...]:
    """Return strides between tokens and heads of q, k, v and decays, and between tokens of beta."""
    *with_heads, beta = inputs
    return (*(stride for x in with_heads for stride in x.stride()[:2]), beta.stride(0))


def _padded(size: int) -> int:
    """Return the size of the tile axis that holds `size` elements."""
    return max(LEAST_DIM, 1 << (size - 1).bit_length())
