"""Linear attention: a matrix per head in place of a cache, decayed and corrected token by token.

Legend: T tokens, R rows of the step, B blocks of the state group, J key heads, N value heads,
K key dim, V value dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.ops.declare import FLOAT_TOLERANCE, operator

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tokenspeed.contracts.model import StateRows

UNIT_EPS = 1e-6
"""Added to the squared length of queries and keys before they are made unit vectors."""


def _gate_cases(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    import torch

    random = torch.Generator().manual_seed(seed)
    for tokens, heads in ((1, 2), (7, 32)):
        a, b = torch.randn(2, tokens, heads, generator=random) * 5
        a_log, dt_bias = torch.randn(2, heads, generator=random)
        yield (a, b, a_log, dt_bias), {}


def _rule_cases(seed: int) -> Iterator[tuple[tuple[Any, ...], dict[str, Any]]]:
    import torch

    from tokenspeed.ops.state import random_rows

    random = torch.Generator().manual_seed(seed)
    for lengths, (key_heads, heads), (key_dim, value_dim) in (
        ((1, 1, 1), (1, 3), (8, 4)),
        ((1, 2, 3, 70), (2, 4), (8, 12)),
        ((129, 1, 64), (2, 2), (16, 16)),
    ):
        tokens = sum(lengths)
        rows, query_start = random_rows(lengths, random)
        q, k = torch.randn(2, tokens, key_heads, key_dim, generator=random)
        v = torch.randn(tokens, heads, value_dim, generator=random)
        log_decay = -torch.rand(tokens, heads, generator=random).square() * 3
        beta = torch.rand(tokens, heads, generator=random)
        state = torch.randn(2 * len(lengths), heads, key_dim, value_dim, generator=random)
        yield (q, k, v, log_decay, beta, state, rows, query_start), {}


@operator("linear_attention.delta_gates", cases=_gate_cases)
def delta_gates(
    a_TN: torch.Tensor, b_TN: torch.Tensor, a_log_N: torch.Tensor, dt_bias_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute how much each head forgets and learns: -exp(a_log) softplus(a + dt_bias), sigmoid(b).

    Args:
        a_TN, b_TN: (T, N) float, device.
        a_log_N, dt_bias_N: (N,) same dtype.
    Returns:
        Logarithm of the decay, at most 0, and learning rate in (0, 1); (T, N) float32 or wider.
    """
    log_decay = -a_log_N.exp() * (1 + (a_TN + dt_bias_N).exp()).log()
    return log_decay, b_TN.sigmoid()


@operator(
    "linear_attention.gated_delta",
    tolerance={**FLOAT_TOLERANCE, "float32": (1e-4, 1e-4)},
    cases=_rule_cases,
)
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
    """Decay the state S, correct what it answers for the key, and read it with the query.

    Per token: S' = exp(log_decay) S; S = S' + k (beta (v - k S')); o = q S / sqrt(K), with q and k
    made unit vectors. Arithmetic and state are float32 or wider.

    Args:
        q_TJK, k_TJK: (T, J, K) float, device; value head n reads key head n J // N.
        v_TNV: (T, N, V) same dtype.
        log_decay_TN, beta_TN: (T, N) float, see `delta_gates`.
        state_BNKV: (B, N, K, V) float; block write_R of each row is written.
        rows: blocks that the rows of the step read and write.
        query_start: (R + 1,) int32 host; row r has the tokens [query_start[r], query_start[r + 1]).
    Returns:
        (T, N, V), dtype and device of v.
    Source: Gated Delta Networks, Yang et al. 2024, equation 10.
    """
    import torch

    from tokenspeed.ops.state import each_row

    out = torch.empty_like(v_TNV)
    group = v_TNV.shape[1] // k_TJK.shape[1]
    q_TNK, k_TNK = (_unit(x).repeat_interleave(group, dim=1) for x in (q_TJK, k_TJK))
    for tokens, read, write in each_row(rows, query_start):
        state = state_BNKV[read] if read >= 0 else torch.zeros_like(state_BNKV[0])
        for token in range(tokens.start, tokens.stop):
            state = state * log_decay_TN[token].exp()[:, None, None]
            answer_NV = (k_TNK[token][..., None] * state).sum(1)
            correction_NV = beta_TN[token][:, None] * (v_TNV[token] - answer_NV)
            state = state + k_TNK[token][..., None] * correction_NV[:, None]
            out[token] = (q_TNK[token][..., None] * state).sum(1) * k_TNK.shape[-1] ** -0.5
        state_BNKV[write] = state
    return out


def _unit(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().sum(-1, keepdim=True) + UNIT_EPS).sqrt()
