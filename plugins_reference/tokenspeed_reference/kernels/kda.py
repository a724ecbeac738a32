"""Kernels of Kimi delta attention: one step for rows of one token, chunks of 16 for longer rows.

Legend: T tokens, R rows, B blocks, J key heads, N value heads, K key dim, V value dim, C tokens of
a chunk.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.linalg import solve_triangular
from torch.nn.functional import softplus

from tokenspeed_reference.kernels.linear_attention import delta_rule
from tokenspeed_sdk import StateRows

CHUNK_TOKENS = 16
"""Short: the decay between two tokens has a number per key channel, C x C x K a head."""


def kda_gates(
    g_TNK: torch.Tensor,
    b_TN: torch.Tensor,
    a_log_N: torch.Tensor,
    dt_bias_NK: torch.Tensor,
    *,
    lower_bound: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute kda.gates in float64, for the reason in activation.sigmoid."""
    shifted = g_TNK.double() + dt_bias_NK.double()
    rate_N1 = a_log_N.double().exp()[:, None]
    if lower_bound is None:
        log_decay = -rate_N1 * softplus(shifted)
    else:
        log_decay = lower_bound * (rate_N1 * shifted).sigmoid()
    return log_decay.float(), b_TN.double().sigmoid().float()


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
    """Run the rule with a decay per key channel."""
    inputs = (q_TJK, k_TJK, v_TNV, log_decay_TNK, beta_TN)
    return delta_rule(
        *inputs, state_BNKV, rows, query_start, chunk_tokens=CHUNK_TOKENS, run_chunk=_chunk
    )


def _chunk(
    state_NKV: torch.Tensor,
    q_NCK: torch.Tensor,
    k_NCK: torch.Tensor,
    v_NCV: torch.Tensor,
    log_decay_NCK: torch.Tensor,
    beta_NC: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (output (N, C, V), state after C tokens) from the state S before them.

    As in the gated delta rule, with a decay D[i, j] from token j to token i per key channel: the
    state after token i is D[i, start] S + sum over j <= i of (D[i, j] k[j]) u[j], where the
    corrections u solve u[i] + beta[i] sum over j < i of (k[i] D[i, j] k[j]) u[j] =
    beta[i] (v[i] - (k[i] D[i, start]) S). Decays between tokens are exponentials of differences, at
    most 1: exponentials of the sums alone would overflow.

    Source: Kimi Linear, Kimi Team 2025, section 4; computed without its factorised decays.
    """
    total_NCK = log_decay_NCK.cumsum(1)
    between = total_NCK[:, :, None] - total_NCK[:, None]
    later = torch.ones(between.shape[1:3], dtype=torch.bool, device=between.device).triu(1)
    decayed_NCCK = between.masked_fill_(later[..., None], -torch.inf).exp_() * k_NCK[:, None]
    since_start_NCK = total_NCK.exp()
    system_NCC = beta_NC[..., None] * (k_NCK[:, :, None] * decayed_NCCK).sum(-1)
    wanted_NCV = beta_NC[..., None] * (v_NCV - (k_NCK * since_start_NCK) @ state_NKV)
    u_NCV = solve_triangular(system_NCC, wanted_NCV, upper=False, unitriangular=True)
    attention_NCC = (q_NCK[:, :, None] * decayed_NCCK).sum(-1)
    out_NCV = (q_NCK * since_start_NCK) @ state_NKV + attention_NCC @ u_NCV
    state = since_start_NCK[:, -1, :, None] * state_NKV + decayed_NCCK[:, -1].mT @ u_NCV
    return out_NCV, state
