# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"
"""How much heads forget and learn: the gates of both delta rules.

Legend: T tokens, N heads, K key dim, E elements of a program.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

__all__ = ["delta_gates", "kda_gates"]

ELEMENTS = 1024
"""Of a program."""


@triton.jit
def _softplus(x):
    """Return log(1 + exp(x)) without overflow."""
    return tl.maximum(x, 0.0) + tl.log(1 + tl.exp(-tl.abs(x)))


@triton.jit
def delta_gates_kernel(
    a,
    b,
    a_log,
    dt_bias,
    log_decay,
    beta,
    num_elements,
    num_heads,
    a_token,
    b_token,
    E: tl.constexpr,
):
    """Compute E pairs of token and head."""
    index = tl.program_id(0).to(tl.int64) * E + tl.arange(0, E)
    is_in = index < num_elements
    token, head = index // num_heads, index % num_heads
    x = tl.load(a + token * a_token + head, mask=is_in, other=0.0).to(tl.float32)
    x += tl.load(dt_bias + head, mask=is_in, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(a_log + head, mask=is_in, other=0.0).to(tl.float32))
    tl.store(log_decay + index, -rate * _softplus(x), mask=is_in)
    y = tl.load(b + token * b_token + head, mask=is_in, other=0.0).to(tl.float32)
    tl.store(beta + index, tl.sigmoid(y), mask=is_in)


@triton.jit
def kda_gates_kernel(
    g,
    b,
    a_log,
    dt_bias,
    log_decay,
    beta,
    num_heads,
    g_token,
    g_head,
    b_token,
    bound,
    KEYS: tl.constexpr,
    K: tl.constexpr,
    BOUNDED: tl.constexpr,
):
    """Compute one head of one token."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    key = tl.arange(0, K)
    is_key = key < KEYS
    x = tl.load(g + token * g_token + head * g_head + key, mask=is_key, other=0.0).to(tl.float32)
    x += tl.load(dt_bias + head * KEYS + key, mask=is_key, other=0.0).to(tl.float32)
    rate = tl.exp(tl.load(a_log + head).to(tl.float32))
    if BOUNDED:
        found = bound * tl.sigmoid(rate * x)
    else:
        found = -rate * _softplus(x)
    place = token * num_heads + head
    tl.store(log_decay + place * KEYS + key, found, mask=is_key)
    tl.store(beta + place, tl.sigmoid(tl.load(b + token * b_token + head).to(tl.float32)))


def delta_gates(
    a_TN: torch.Tensor, b_TN: torch.Tensor, a_log_N: torch.Tensor, dt_bias_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute linear_attention.delta_gates."""
    a_TN, b_TN = (x if x.stride(1) == 1 else x.contiguous() for x in (a_TN, b_TN))
    log_decay_TN = torch.empty(a_TN.shape, dtype=torch.float32, device=a_TN.device)
    beta_TN = torch.empty_like(log_decay_TN)
    num_elements = log_decay_TN.numel()
    if num_elements:
        delta_gates_kernel[(triton.cdiv(num_elements, ELEMENTS),)](
            a_TN,
            b_TN,
            a_log_N,
            dt_bias_N,
            log_decay_TN,
            beta_TN,
            num_elements,
            a_TN.shape[1],
            a_TN.stride(0),
            b_TN.stride(0),
            E=ELEMENTS,
            num_warps=4,
        )
    return log_decay_TN, beta_TN


def kda_gates(
    g_TNK: torch.Tensor,
    b_TN: torch.Tensor,
    a_log_N: torch.Tensor,
    dt_bias_NK: torch.Tensor,
    *,
    lower_bound: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute kda.gates."""
    g_TNK = g_TNK if g_TNK.stride(2) == 1 else g_TNK.contiguous()
    b_TN = b_TN if b_TN.stride(1) == 1 else b_TN.contiguous()
    num_tokens, num_heads, key_dim = g_TNK.shape
    log_decay_TNK = torch.empty(g_TNK.shape, dtype=torch.float32, device=g_TNK.device)
    beta_TN = torch.empty((num_tokens, num_heads), dtype=torch.float32, device=g_TNK.device)
    if num_tokens:
        kda_gates_kernel[(num_tokens, num_heads)](
            g_TNK,
            b_TN,
            a_log_N,
            dt_bias_NK,
            log_decay_TNK,
            beta_TN,
            num_heads,
            *g_TNK.stride()[:2],
            b_TN.stride(0),
            0.0 if lower_bound is None else lower_bound,
            KEYS=key_dim,
            K=triton.next_power_of_2(key_dim),
            BOUNDED=lower_bound is not None,
            num_warps=1,
        )
    return log_decay_TNK, beta_TN
