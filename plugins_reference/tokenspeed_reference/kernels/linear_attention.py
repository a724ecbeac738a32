"""Kernels of linear attention: one step for rows of one token, chunks of 64 for longer rows.

Legend: T tokens, R rows, B blocks, J key heads, N value heads, K key dim, V value dim, C tokens of
a chunk, D decays of a head and token.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.linalg import solve_triangular
from torch.nn.functional import softplus

from tokenspeed_reference.kernels.state import read_rows, split_rows
from tokenspeed_sdk import StateRows, ops

CHUNK_TOKENS = 64


def delta_gates(
    a_TN: torch.Tensor, b_TN: torch.Tensor, a_log_N: torch.Tensor, dt_bias_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute linear_attention.delta_gates in float64, for the reason in activation.sigmoid."""
    log_decay_TN = -a_log_N.double().exp() * softplus(a_TN.double() + dt_bias_N.double())
    return log_decay_TN.float(), b_TN.double().sigmoid().float()


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
    """Run the rule with one decay a head and token."""
    inputs = (q_TJK, k_TJK, v_TNV, log_decay_TN[..., None], beta_TN)
    return delta_rule(
        *inputs, state_BNKV, rows, query_start, chunk_tokens=CHUNK_TOKENS, run_chunk=_chunk
    )


def delta_rule(
    q_TJK: torch.Tensor,
    k_TJK: torch.Tensor,
    v_TNV: torch.Tensor,
    log_decay_TND: torch.Tensor,
    beta_TN: torch.Tensor,
    state_BNKV: torch.Tensor,
    rows: StateRows,
    query_start: Any,
    *,
    chunk_tokens: int,
    run_chunk: Callable[..., tuple[torch.Tensor, torch.Tensor]],
) -> torch.Tensor:
    """Run a delta rule in float32: rows of one token together, longer ones chunk by chunk.

    Args:
        log_decay_TND: (T, N, D); D is 1, or K: a decay per key channel.
        run_chunk: as `_chunk`, of up to `chunk_tokens` tokens.
    """
    group = v_TNV.shape[1] // k_TJK.shape[1]
    q_TNK = unit(q_TJK).mul_(q_TJK.shape[-1] ** -0.5).repeat_interleave(group, dim=1)
    inputs = (q_TNK, unit(k_TJK).repeat_interleave(group, dim=1), v_TNV, log_decay_TND, beta_TN)
    state_RNKV = read_rows(state_BNKV, rows).float()
    out_TNV = torch.empty_like(v_TNV)
    singles, longer = split_rows(query_start, v_TNV.device)
    if singles is not None:
        now = (x[singles.tokens].float() for x in inputs)
        out, state = _step(state_RNKV[singles.rows], *now)
        out_TNV[singles.tokens] = out.type_as(out_TNV)
        state_BNKV[rows.write_R[singles.rows]] = state.type_as(state_BNKV)
    for row, tokens in longer:
        state = state_RNKV[row]
        for start in range(tokens.start, tokens.stop, chunk_tokens):
            chunk = slice(start, min(start + chunk_tokens, tokens.stop))
            now = (x[chunk].float().transpose(0, 1) for x in inputs)
            out, state = run_chunk(state, *now)
            out_TNV[chunk] = out.transpose(0, 1).type_as(out_TNV)
        state_BNKV[rows.write_R[row]] = state.type_as(state_BNKV)
    return out_TNV


def unit(x: torch.Tensor) -> torch.Tensor:
    """Return x at length 1 along the last axis, float32."""
    x = x.float()
    return x * (x.square().sum(-1, keepdim=True) + ops.linear_attention.UNIT_EPS).rsqrt()


def _step(
    state_RNKV: torch.Tensor,
    q_RNK: torch.Tensor,
    k_RNK: torch.Tensor,
    v_RNV: torch.Tensor,
    log_decay_RND: torch.Tensor,
    beta_RN: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (output (R, N, V), state after one token); the state given is overwritten."""
    state_RNKV.mul_(log_decay_RND.double().exp().float()[..., None])
    answer_RNV = (k_RNK[..., None] * state_RNKV).sum(-2)
    correction_RNV = beta_RN[..., None] * (v_RNV - answer_RNV)
    state_RNKV.addcmul_(k_RNK[..., None], correction_RNV[..., None, :])
    return (q_RNK[..., None] * state_RNKV).sum(-2), state_RNKV


def _chunk(
    state_NKV: torch.Tensor,
    q_NCK: torch.Tensor,
    k_NCK: torch.Tensor,
    v_NCV: torch.Tensor,
    log_decay_NC1: torch.Tensor,
    beta_NC: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (output (N, C, V), state after C tokens) from the state S before them.

    With D[i, j] the decay from token j to token i, the state after token i is
    D[i, start] S + sum over j <= i of D[i, j] k[j] u[j], where the corrections u solve
    u[i] + beta[i] sum over j < i of D[i, j] (k[i] k[j]) u[j] = beta[i] (v[i] - D[i, start] k[i] S).

    Source: Parallelizing Linear Transformers with the Delta Rule over Sequence Length, Yang et
    al. 2024, section 3, with decays.
    """
    total_NC = log_decay_NC1[..., 0].cumsum(-1)
    between = total_NC[..., None] - total_NC[:, None]
    later = torch.ones_like(between[0], dtype=torch.bool).triu(1)
    decay_NCC = between.masked_fill_(later, -torch.inf).exp_()
    since_start_NC1 = total_NC.exp()[..., None]
    system_NCC = beta_NC[..., None] * decay_NCC * (k_NCK @ k_NCK.mT)
    wanted_NCV = beta_NC[..., None] * (v_NCV - since_start_NC1 * (k_NCK @ state_NKV))
    u_NCV = solve_triangular(system_NCC, wanted_NCV, upper=False, unitriangular=True)
    out_NCV = since_start_NC1 * (q_NCK @ state_NKV) + (decay_NCC * (q_NCK @ k_NCK.mT)) @ u_NCV
    to_end_NC1 = decay_NCC[:, -1, :, None]
    state = since_start_NC1[:, -1:] * state_NKV + (to_end_NC1 * k_NCK).mT @ u_NCV
    return out_NCV, state
