# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""Kernel of both delta rules for rows of one token: read a state, correct it, write it, answer.

Bound by memory: a program holds all keys of VT values of one head's state in registers.
Legend: K key dim, V value dims of a program.
"""

from __future__ import annotations

import triton
import triton.language as tl

STEP_VALUES = 32
"""Value dims of a program: 128 bytes of each of the state's lines; the same in every batch."""
EPS = tl.constexpr(1e-6)
"""As UNIT_EPS of the operator."""


@triton.jit
def delta_step(
    q,
    k,
    v,
    log_decay,
    beta,
    state,
    out,
    read,
    write,
    singles,
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
    out_token,
    out_head,
    state_block,
    state_head,
    state_key,
    KEYS: tl.constexpr,
    VALUES: tl.constexpr,
    K: tl.constexpr,
    V: tl.constexpr,
    CHANNELS: tl.constexpr,
    ALL: tl.constexpr,
):
    """Take one token of one row and head.

    Args:
        group: value heads that read one key head.
        CHANNELS: a decay per key channel.
        ALL: every row of the step is one of one token; else `singles` lists those.
    """
    row = tl.program_id(2).to(tl.int64)
    token = row
    if not ALL:
        single = singles + row * 2
        row = tl.load(single).to(tl.int64)
        token = tl.load(single + 1).to(tl.int64)
    head = tl.program_id(1)
    key_K = tl.arange(0, K)
    value_V = tl.program_id(0) * V + tl.arange(0, V)
    is_key_K, is_value_V = key_K < KEYS, value_V < VALUES
    is_in_KV = is_key_K[:, None] & is_value_V[None, :]
    source = tl.load(read + row)
    is_read_K = key_K < tl.where(source >= 0, KEYS, 0)
    target = tl.load(write + row)
    within_KV = head.to(tl.int64) * state_head + key_K[:, None] * state_key + value_V[None, :]
    state_KV = tl.load(
        state + tl.maximum(source, 0) * state_block + within_KV,
        mask=is_read_K[:, None] & is_value_V[None, :],
        other=0.0,
    )
    key_head = head // group
    q_K = tl.load(q + token * q_token + key_head * q_head + key_K, mask=is_key_K, other=0.0)
    k_K = tl.load(k + token * k_token + key_head * k_head + key_K, mask=is_key_K, other=0.0)
    q_K, k_K = q_K.to(tl.float32), k_K.to(tl.float32)
    q_K = q_K * (scale / tl.sqrt(tl.sum(q_K * q_K) + EPS))
    k_K = k_K / tl.sqrt(tl.sum(k_K * k_K) + EPS)
    v_V = tl.load(v + token * v_token + head * v_head + value_V, mask=is_value_V, other=0.0).to(
        tl.float32
    )
    decay = log_decay + token * decay_token + head * decay_head
    if CHANNELS:
        kept_K = tl.exp(tl.load(decay + key_K, mask=is_key_K, other=0.0))
        state_KV = state_KV * kept_K[:, None]
    else:
        state_KV = state_KV * tl.exp(tl.load(decay))
    answer_V = tl.sum(k_K[:, None] * state_KV, 0)
    correction_V = tl.load(beta + token * beta_token + head) * (v_V - answer_V)
    state_KV += k_K[:, None] * correction_V[None, :]
    out_V = tl.sum(q_K[:, None] * state_KV, 0)
    tl.store(
        out + token * out_token + head * out_head + value_V,
        out_V.to(out.dtype.element_ty),
        mask=is_value_V,
    )
    tl.store(state + target * state_block + within_KV, state_KV, mask=is_in_KV)
