# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Kernels of both delta rules for chunks of C = 64 tokens.

With D[i, j] the decay from token j to token i, k and q unit vectors and S the state before a chunk:

    (I + A) u = beta v,  (I + A) w = beta D[., start] k,  A[i, j] = beta[i] k[i] D[i, j] k[j], j < i
    corrections U = u - w S
    out = (D[., start] q) S + B U,                        B[i, j] = q[i] D[i, j] k[j], j <= i
    state after = D[end, start] S + (D[end, .] k)^T U

`relate_chunk` computes all but what holds S, for all chunks at once; `carry_chunks` walks a row's
chunks with a part of the state in registers.

Decays are exponentials of sums of logarithms, at most 1 each. Where they differ by key channel,
D[i, j] is no factor of k[i] k[j], and the quotient D[i, start] / D[j, start] would overflow. So
pairs are met at the highest bit in which i and j differ: there a boundary of blocks lies between
them, and D[i, j] = D[i, boundary] D[boundary, j], for all pairs of that bit in one product.

Source: Parallelizing Linear Transformers with the Delta Rule over Sequence Length, Yang et al.
2024, section 3; Gated Delta Networks, Yang et al. 2024; Kimi Linear, Kimi Team 2025. The decays
met at a bit, and the inverse by squaring within 8 tokens and then by halves, are ours.
Legend: C tokens of a chunk, K key dim, V value dim.
"""

from __future__ import annotations

import triton
import triton.language as tl

from tokenspeed_sdk.portable.recurrent.step import EPS


@triton.jit
def _since_boundary(log_decay_CK, SIZE: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
    """Return sums from the start of each token's block of SIZE to the token, itself included."""
    blocks = tl.reshape(log_decay_CK, (C // SIZE, SIZE, K))
    return tl.reshape(tl.cumsum(blocks, 1), (C, K))


@triton.jit
def _until_boundary(log_decay_CK, SIZE: tl.constexpr, C: tl.constexpr, K: tl.constexpr):
    """Return sums from the token, itself not included, to the end of its block of SIZE."""
    blocks = tl.reshape(log_decay_CK, (C // SIZE, SIZE, K))
    return tl.reshape(tl.cumsum(blocks, 1, reverse=True), (C, K)) - log_decay_CK


@triton.jit
def _inverse(a_CC, C: tl.constexpr, PRECISION: tl.constexpr):
    """Return (I + A)^-1 of a strictly lower triangular A.

    Of the diagonal's blocks of 8 it is (I - A)(I + A^2)(I + A^4), which is exact, with powers too
    small to lose digits. Two neighbours that are inverted, and L between them, give
    T - T L T, for all pairs of one size at once.
    """
    i_C1 = tl.arange(0, C)[:, None]
    j_1C = tl.arange(0, C)[None, :]
    eye_CC = (i_C1 == j_1C).to(tl.float32)
    near_CC = tl.where(i_C1 // 8 == j_1C // 8, a_CC, 0.0)
    square_CC = tl.dot(near_CC, near_CC, input_precision=PRECISION)
    inverse_CC = tl.dot(eye_CC - near_CC, eye_CC + square_CC, input_precision=PRECISION)
    square_CC = tl.dot(square_CC, square_CC, input_precision=PRECISION)
    inverse_CC = tl.dot(inverse_CC, eye_CC + square_CC, input_precision=PRECISION)
    for level in tl.static_range(3, 6):
        is_pair_CC = (i_C1 >> (level + 1) == j_1C >> (level + 1)) & (i_C1 >> level > j_1C >> level)
        between_CC = tl.where(is_pair_CC, a_CC, 0.0)
        product_CC = tl.dot(inverse_CC, between_CC, input_precision=PRECISION)
        inverse_CC -= tl.dot(product_CC, inverse_CC, input_precision=PRECISION)
    return inverse_CC


@triton.jit
def relate_chunk(
    q,
    k,
    v,
    log_decay,
    beta,
    chunks,
    u,
    w,
    mixed,
    queries,
    keys,
    kept,
    group,
    scale,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    decay_token,
    decay_head,
    beta_token,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Relate the tokens of one chunk and head to each other.

    Args:
        u, w, mixed, queries, keys: (chunks, heads, C, V | K | C | K | K): u, w, B, D[., start] q
            and D[end, .] k of above.
        kept: (chunks, heads, K) float32, or without CHANNELS (chunks, heads): D[end, start].
    """
    OPERAND: tl.constexpr = tl.float32 if WIDE else q.dtype.element_ty
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    first = tl.load(chunks + chunk * 3 + 1)
    size = tl.load(chunks + chunk * 3 + 2)
    i_C = tl.arange(0, C)
    key_K = tl.arange(0, K)
    value_V = tl.arange(0, V)
    token_C = (first + i_C).to(tl.int64)
    is_in_C = i_C < size
    is_in_CK = is_in_C[:, None] & (key_K < KEYS)[None, :]
    key_head = head // group
    at_CK = token_C[:, None] * k_token + key_head * k_head + key_K[None, :]
    k_CK = tl.load(k + at_CK, mask=is_in_CK, other=0.0).to(tl.float32)
    k_CK = k_CK / tl.sqrt(tl.sum(k_CK * k_CK, 1) + EPS)[:, None]
    at_CK = token_C[:, None] * q_token + key_head * q_head + key_K[None, :]
    q_CK = tl.load(q + at_CK, mask=is_in_CK, other=0.0).to(tl.float32)
    q_CK = q_CK * (scale / tl.sqrt(tl.sum(q_CK * q_CK, 1) + EPS))[:, None]
    beta_C = tl.load(beta + token_C * beta_token + head, mask=is_in_C, other=0.0)
    place = (chunk * tl.num_programs(1) + head).to(tl.int64)
    is_later_CC = i_C[:, None] > i_C[None, :]
    decay_C = log_decay + token_C * decay_token + head * decay_head
    if CHANNELS:
        decay_CK = tl.load(decay_C[:, None] + key_K[None, :], mask=is_in_CK, other=0.0)
        a_CC = tl.zeros((C, C), tl.float32)
        b_CC = tl.where(i_C[:, None] == i_C[None, :], tl.sum(q_CK * k_CK, 1)[:, None], 0.0)
        for level in tl.static_range(6):
            since_CK = tl.exp(_since_boundary(decay_CK, 1 << level, C, K))
            until_CK = tl.exp(_until_boundary(decay_CK, 1 << level, C, K))
            before_KC = tl.trans((k_CK * until_CK).to(OPERAND))
            is_pair_CC = is_later_CC & ((i_C[:, None] >> level) ^ (i_C[None, :] >> level) == 1)
            found_CC = tl.dot((k_CK * since_CK).to(OPERAND), before_KC, input_precision="ieee")
            a_CC += tl.where(is_pair_CC, found_CC, 0.0)
            found_CC = tl.dot((q_CK * since_CK).to(OPERAND), before_KC, input_precision="ieee")
            b_CC += tl.where(is_pair_CC, found_CC, 0.0)
        since_CK = tl.exp(tl.cumsum(decay_CK, 0))
        until_CK = tl.exp(tl.cumsum(decay_CK, 0, reverse=True) - decay_CK)
        tl.store(kept + place * K + key_K, tl.exp(tl.sum(decay_CK, 0)))
    else:
        decay_C = tl.load(decay_C, mask=is_in_C, other=0.0)
        # Sums from j to i themselves, not differences of sums from the start: no digits are lost.
        steps_CC = tl.where(is_later_CC, decay_C[:, None], 0.0)
        between_CC = tl.exp(tl.cumsum(steps_CC, 0))
        k_KC = tl.trans(k_CK.to(OPERAND))
        found_CC = tl.dot(k_CK.to(OPERAND), k_KC, input_precision="ieee")
        a_CC = tl.where(is_later_CC, found_CC * between_CC, 0.0)
        found_CC = tl.dot(q_CK.to(OPERAND), k_KC, input_precision="ieee")
        b_CC = tl.where(i_C[:, None] >= i_C[None, :], found_CC * between_CC, 0.0)
        since_CK = tl.exp(tl.cumsum(decay_C, 0))[:, None]
        until_CK = tl.exp(tl.cumsum(decay_C, 0, reverse=True) - decay_C)[:, None]
        tl.store(kept + place, tl.exp(tl.sum(decay_C)))
    out_CK = place * C * K + i_C[:, None] * K + key_K[None, :]
    tl.store(queries + out_CK, (q_CK * since_CK).to(queries.dtype.element_ty))
    tl.store(keys + out_CK, (k_CK * until_CK).to(keys.dtype.element_ty))
    out_CC = place * C * C + i_C[:, None] * C + i_C[None, :]
    tl.store(mixed + out_CC, b_CC.to(mixed.dtype.element_ty))
    inverse_CC = _inverse(a_CC * beta_C[:, None], C, PRECISION).to(OPERAND)
    w_CK = (k_CK * since_CK * beta_C[:, None]).to(OPERAND)
    w_CK = tl.dot(inverse_CC, w_CK, input_precision="ieee")
    tl.store(w + out_CK, w_CK.to(w.dtype.element_ty))
    v_CV = tl.load(
        v + token_C[:, None] * v_token + head * v_head + value_V[None, :],
        mask=is_in_C[:, None] & (value_V < VALUES)[None, :],
        other=0.0,
    ).to(tl.float32)
    u_CV = tl.dot(inverse_CC, (v_CV * beta_C[:, None]).to(OPERAND), input_precision="ieee")
    tl.store(u + place * C * V + i_C[:, None] * V + value_V[None, :], u_CV.to(u.dtype.element_ty))


@triton.jit
def carry_chunks(
    u,
    w,
    mixed,
    queries,
    keys,
    kept,
    state,
    out,
    chunks,
    longer,
    read,
    write,
    out_token,
    out_head,
    state_block,
    state_head,
    state_key,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    K: tl.constexpr,
    WIDTH: tl.constexpr,
    V: tl.constexpr,
    C: tl.constexpr,
    CHANNELS: tl.constexpr,
    WIDE: tl.constexpr,
):
    """Carry V value dims of one head's state through the chunks of one row.

    Args:
        WIDTH: padded dims of a value, in `u`.
    """
    OPERAND: tl.constexpr = tl.float32 if WIDE else u.dtype.element_ty
    head = tl.program_id(1)
    num_heads = tl.num_programs(1)
    row = tl.load(longer + tl.program_id(2) * 3).to(tl.int64)
    first = tl.load(longer + tl.program_id(2) * 3 + 1)
    count = tl.load(longer + tl.program_id(2) * 3 + 2)
    i_C = tl.arange(0, C)
    key_K = tl.arange(0, K)
    value_V = tl.program_id(0) * V + tl.arange(0, V)
    is_value_V = value_V < VALUES
    is_in_KV = (key_K < KEYS)[:, None] & is_value_V[None, :]
    source = tl.load(read + row)
    is_read_K = key_K < tl.where(source >= 0, KEYS, 0)
    target = tl.load(write + row)
    within_KV = head.to(tl.int64) * state_head + key_K[:, None] * state_key + value_V[None, :]
    state_KV = tl.load(
        state + tl.maximum(source, 0) * state_block + within_KV,
        mask=is_read_K[:, None] & is_value_V[None, :],
        other=0.0,
    )
    in_CK = i_C[:, None] * K + key_K[None, :]
    for chunk in range(first, first + count):
        place = (chunk * num_heads + head).to(tl.int64)
        token = tl.load(chunks + chunk * 3 + 1)
        size = tl.load(chunks + chunk * 3 + 2)
        w_CK = tl.load(w + place * (C * K) + in_CK).to(OPERAND)
        queries_CK = tl.load(queries + place * (C * K) + in_CK).to(OPERAND)
        keys_CK = tl.load(keys + place * (C * K) + in_CK).to(OPERAND)
        mixed_CC = tl.load(mixed + place * (C * C) + i_C[:, None] * C + i_C[None, :]).to(OPERAND)
        u_CV = tl.load(u + place * (C * WIDTH) + i_C[:, None] * WIDTH + value_V[None, :]).to(
            tl.float32
        )
        held_KV = state_KV.to(OPERAND)
        fixed_CV = (u_CV - tl.dot(w_CK, held_KV, input_precision="ieee")).to(OPERAND)
        out_CV = tl.dot(queries_CK, held_KV, input_precision="ieee")
        out_CV = tl.dot(mixed_CC, fixed_CV, out_CV, input_precision="ieee")
        if CHANNELS:
            state_KV = state_KV * tl.load(kept + place * K + key_K)[:, None]
        else:
            state_KV = state_KV * tl.load(kept + place)
        state_KV = tl.dot(tl.trans(keys_CK), fixed_CV, state_KV, input_precision="ieee")
        token_C = (token + i_C).to(tl.int64)
        tl.store(
            out + token_C[:, None] * out_token + head * out_head + value_V[None, :],
            out_CV.to(out.dtype.element_ty),
            mask=(i_C < size)[:, None] & is_value_V[None, :],
        )
    tl.store(state + target * state_block + within_KV, state_KV, mask=is_in_KV)
