# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""What stands between a layer's projections and its attention, in one launch.

Norms of query and key heads, rotation of both, and the store of keys and values. Numbers stay in
float32 between the steps and are rounded once.
Legend: T query tokens, N query heads, K kv heads, E heads of a program, H head dim, A rotated dims.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from tokenspeed_sdk.portable.attention.geometry import padded
from tokenspeed_sdk.portable.attention.writing import place_of

if TYPE_CHECKING:
    import torch

    from tokenspeed_sdk import KVView
    from tokenspeed_sdk.portable.attention.steps import Places

ELEMENTS_AT_ONCE = 1024
"""Of the heads of one program: 16 bytes a thread of four warps in half precision."""


@dataclass(frozen=True, slots=True)
class HeadNorm:
    """RMS norm of each head: x / sqrt(mean(x^2) + eps) * (centre + weight).

    Args:
        weight_H: (H,) dtype of the heads, device.
        centre: 1 where weights are stored less one (norm.centred_rms), else 0.
    """

    weight_H: torch.Tensor
    eps: float
    centre: float = 0.0


@triton.jit
def _turned_heads(x, weight, cos, sin, heads_E, is_used_E, head_stride, eps, centre,
                  H: tl.constexpr, A: tl.constexpr, BLOCK_H: tl.constexpr,
                  HAS_NORM: tl.constexpr):  # fmt: skip
    """Return (E, BLOCK_H) float32 of one token, normalised and rotated."""
    dims = tl.arange(0, BLOCK_H)
    is_used_EH = is_used_E[:, None] & (dims < H)[None, :]
    lines_E1 = (heads_E * head_stride)[:, None]
    x_EH = tl.load(x + lines_E1 + dims[None, :], mask=is_used_EH, other=0.0).to(tl.float32)
    partners = tl.where(dims < A, (dims + A // 2) % max(A, 1), dims)
    share_E1 = tl.full([1, 1], 1.0, tl.float32)
    if HAS_NORM:
        share_E1 = 1.0 / tl.sqrt(tl.sum(x_EH * x_EH, axis=1) / H + eps)[:, None]
        weight_H = tl.load(weight + dims, mask=dims < H, other=0.0).to(tl.float32)
        x_EH = x_EH * share_E1 * (weight_H + centre)[None, :]
    if A > 0:
        places = lines_E1 + partners[None, :]
        other_EH = tl.load(x + places, mask=is_used_EH, other=0.0).to(tl.float32)
        if HAS_NORM:
            weight_H = tl.load(weight + partners, mask=dims < H, other=0.0).to(tl.float32)
            other_EH = other_EH * share_E1 * (weight_H + centre)[None, :]
        cos_H = tl.load(cos + dims, mask=dims < A, other=1.0).to(tl.float32)
        sin_H = tl.load(sin + dims, mask=dims < A, other=0.0).to(tl.float32)
        x_EH = x_EH * cos_H[None, :] + other_EH * sin_H[None, :]
    return x_EH


@triton.jit(do_not_specialize=["num_rows", "table_line"])
def attention_prepare(
    q_out,
    k_cache,
    v_cache,
    q,
    k,
    v,
    q_weight,
    k_weight,
    cos,
    sin,
    positions_T,
    tables,
    lines_R,
    starts,
    num_rows,
    table_line,
    k_block,
    k_head,
    k_offset,
    v_block,
    v_head,
    v_offset,
    q_token,
    q_own_head,
    k_token,
    k_own_head,
    v_token,
    v_own_head,
    cos_token,
    sin_token,
    q_eps,
    k_eps,
    q_centre,
    k_centre,
    N: tl.constexpr,
    K: tl.constexpr,
    H: tl.constexpr,
    V: tl.constexpr,
    A: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_V: tl.constexpr,
    HEADS: tl.constexpr,
    BLOCK_TOKENS: tl.constexpr,
    BLOCK_R: tl.constexpr,
    HAS_STARTS: tl.constexpr,
    Q_NORM: tl.constexpr,
    K_NORM: tl.constexpr,
):
    """Prepare some heads of one token: the first programs take queries, the others keys, values."""
    token = tl.program_id(0)
    line = token.to(tl.int64)
    query_groups: tl.constexpr = (N + HEADS - 1) // HEADS
    group = tl.program_id(1)
    dims_H = tl.arange(0, BLOCK_H)
    cos += line * cos_token
    sin += line * sin_token
    if group < query_groups:
        heads_E = group * HEADS + tl.arange(0, HEADS)
        is_head_E = heads_E < N
        q_EH = _turned_heads(
            q + line * q_token, q_weight, cos, sin, heads_E, is_head_E, q_own_head, q_eps, q_centre,
            H, A, BLOCK_H, Q_NORM,
        )  # fmt: skip
        q_places = (line * N + heads_E)[:, None] * H + dims_H[None, :]
        is_used_EH = is_head_E[:, None] & (dims_H < H)[None, :]
        tl.store(q_out + q_places, q_EH.to(q_out.dtype.element_ty), mask=is_used_EH)
    else:
        heads_E = (group - query_groups) * HEADS + tl.arange(0, HEADS)
        is_head_E = heads_E < K
        block, offset = place_of(
            positions_T, tables, lines_R, starts, token, num_rows, table_line,
            BLOCK_TOKENS, BLOCK_R, HAS_STARTS,
        )  # fmt: skip
        k_EH = _turned_heads(
            k + line * k_token, k_weight, cos, sin, heads_E, is_head_E, k_own_head, k_eps, k_centre,
            H, A, BLOCK_H, K_NORM,
        )  # fmt: skip
        k_places = (heads_E * k_head)[:, None] + offset * k_offset + dims_H[None, :]
        is_used_EH = is_head_E[:, None] & (dims_H < H)[None, :]
        own_k_cache = k_cache + block * k_block
        tl.store(own_k_cache + k_places, k_EH.to(k_cache.dtype.element_ty), mask=is_used_EH)
        dims_V = tl.arange(0, BLOCK_V)
        is_used_EV = is_head_E[:, None] & (dims_V < V)[None, :]
        own_places = (heads_E * v_own_head)[:, None] + dims_V[None, :]
        v_EV = tl.load(v + line * v_token + own_places, mask=is_used_EV)
        v_places = (heads_E * v_head)[:, None] + offset * v_offset + dims_V[None, :]
        tl.store(v_cache + block * v_block + v_places, v_EV, mask=is_used_EV)


def rotate_and_write(
    q_TNH: torch.Tensor,
    k_TKH: torch.Tensor,
    v_TKH: torch.Tensor,
    kv: KVView,
    places: Places,
    *,
    q_norm: HeadNorm | None = None,
    k_norm: HeadNorm | None = None,
    rotary: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """Normalise and rotate queries and keys, and store keys and values; see `prepare`."""
    (num_tokens, num_heads, head_dim), num_kv_heads = q_TNH.shape, k_TKH.shape[1]
    value_dim = v_TKH.shape[2]
    out_TNH = q_TNH.new_empty(q_TNH.shape)
    if not num_tokens:
        return out_TNH
    block_h, block_v = padded(head_dim), padded(value_dim)
    most = triton.next_power_of_2(num_heads)
    heads = min(most, max(1, ELEMENTS_AT_ONCE // max(block_h, block_v)))
    cos, sin = rotary or (q_TNH, q_TNH)
    num_rows = len(places.lines_R)
    groups = triton.cdiv(num_heads, heads) + triton.cdiv(num_kv_heads, heads)
    attention_prepare[(num_tokens, groups)](
        out_TNH,
        kv.k,
        kv.v,
        q_TNH,
        k_TKH,
        v_TKH,
        q_norm.weight_H if q_norm else q_TNH,
        k_norm.weight_H if k_norm else k_TKH,
        cos,
        sin,
        places.positions_T,
        places.tables,
        places.lines_R,
        places.lines_R if places.starts is None else places.starts,
        num_rows,
        places.tables.stride(0),
        *kv.k.stride()[:3],
        *kv.v.stride()[:3],
        *q_TNH.stride()[:2],
        *k_TKH.stride()[:2],
        *v_TKH.stride()[:2],
        cos.stride(0),
        sin.stride(0),
        q_norm.eps if q_norm else 0.0,
        k_norm.eps if k_norm else 0.0,
        q_norm.centre if q_norm else 0.0,
        k_norm.centre if k_norm else 0.0,
        N=num_heads,
        K=num_kv_heads,
        H=head_dim,
        V=value_dim,
        A=cos.shape[-1] if rotary else 0,
        BLOCK_H=block_h,
        BLOCK_V=block_v,
        HEADS=heads,
        BLOCK_TOKENS=kv.k.shape[2],
        BLOCK_R=max(16, triton.next_power_of_2(num_rows)),
        HAS_STARTS=places.starts is not None,
        Q_NORM=q_norm is not None,
        K_NORM=k_norm is not None,
        num_warps=4,
    )
    return out_TNH
