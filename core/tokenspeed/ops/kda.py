"""Kimi delta attention (KDA): the gated delta rule whose decay is a number per key channel.

Legend: T tokens, R rows of the step, B blocks of the state group, J key heads, N value heads,
K key dim, V value dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.kernel import Case
from tokenspeed.ops.declare import operator
from tokenspeed.ops.draw import Draw
from tokenspeed.ops.linear_attention import RULE_TOLERANCE, unit
from tokenspeed.ops.state import LENGTHS, each_row, random_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tokenspeed.contracts.kernel import Domain
    from tokenspeed.contracts.model import StateRows


def _gate_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for lower_bound in (None, -5.0):
        options = {"lower_bound": lower_bound}
        for tokens, heads, key_dim in ((0, 2, 4), (1, 2, 4), (7, 3, 16)):
            g = draw.beside(tokens, heads, key_dim, axis=1, scale=5)
            b = draw.beside(tokens, heads, scale=5)
            args = (g, b, draw.floats(heads), draw.floats(heads, key_dim))
            name = f"{tokens} x {heads} heads of {key_dim}, lower bound {lower_bound}"
            yield Case(name, args, options)


def _rule_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for (name, lengths), heads, dims in zip(
        LENGTHS.items(),
        ((1, 1), (1, 3), (2, 4), (2, 2), (4, 4)),
        ((8, 4), (8, 4), (8, 12), (16, 16), (5, 3)),
        strict=True,
    ):
        yield Case(name, _rule_args(draw, lengths, heads, dims, decay=3.0))
    yield Case("strong decays", _rule_args(draw, (1, 90), (1, 2), (8, 4), decay=200.0))


def _rule_args(
    draw: Draw,
    lengths: tuple[int, ...],
    heads: tuple[int, int],
    dims: tuple[int, int],
    *,
    decay: float,
) -> tuple[Any, ...]:
    """Return q, k, v, log decay, learning rate, state, rows and query_start."""
    tokens, (key_heads, value_heads), (key_dim, value_dim) = sum(lengths), heads, dims
    rows, query_start = random_rows(lengths, draw.random)
    q, k = (draw.beside(tokens, key_heads, key_dim, axis=1) for _ in range(2))
    return (
        q,
        k,
        draw.beside(tokens, value_heads, value_dim, axis=1),
        -decay * draw.uniform(tokens, value_heads, key_dim).square(),
        draw.uniform(tokens, value_heads),
        draw.wide(2 * len(lengths) + 1, value_heads, key_dim, value_dim),
        rows,
        query_start,
    )


@operator(
    "kda.gates",
    cases=_gate_cases,
    result_dtypes=("float32", "float32"),
    tokens=("g_TNK", "b_TN"),
    placement="T N K, T N, N, N K -> T N K, T N",
)
def kda_gates(
    g_TNK: torch.Tensor,
    b_TN: torch.Tensor,
    a_log_N: torch.Tensor,
    dt_bias_NK: torch.Tensor,
    *,
    lower_bound: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute how much each key channel forgets and each head learns.

    The logarithm of the decay is -exp(a_log) softplus(g + dt_bias), or, with a lower bound L,
    L sigmoid(exp(a_log) (g + dt_bias)); the learning rate is sigmoid(b).

    Args:
        g_TNK: (T, N, K) float, device.
        b_TN: (T, N) same dtype.
        a_log_N: (N,) same dtype.
        dt_bias_NK: (N, K) same dtype.
        lower_bound: of the logarithm, below 0; None: it has none.
    Returns:
        Logarithm of the decay (T, N, K), at most 0, and learning rate (T, N) in (0, 1); float32.
    Source: Kimi Linear, Kimi Team 2025, section 3; the bounded form is that of the public
        flash-linear-attention library.
    """
    shifted = g_TNK + dt_bias_NK
    rate_N1 = a_log_N.exp()[:, None]
    if lower_bound is not None:
        return lower_bound * (rate_N1 * shifted).sigmoid(), b_TN.sigmoid()
    return -rate_N1 * (1 + shifted.exp()).log(), b_TN.sigmoid()


@operator(
    "kda.delta_rule",
    tolerance=RULE_TOLERANCE,
    cases=_rule_cases,
    tokens=("q_TJK", "k_TJK", "v_TNV", "log_decay_TNK", "beta_TN"),
    placement="T J K!, T J K!, T N V, T N K!, T N, _ N K! V, -, - -> T N V; J<N",
)
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
    """Decay each channel of the state S, correct what it answers for the key, and read it.

    Per token: S' = diag(exp(log_decay)) S; S = S' + k (beta (v - k S')); o = q S / sqrt(K), with q
    and k made unit vectors. Arithmetic is float32. Rows of one token are steps of a decode, longer
    ones are chunks of a prompt, which kernels may compute in a form of their own.

    Args:
        q_TJK, k_TJK: (T, J, K) float, device; value head n reads key head n J // N.
        v_TNV: (T, N, V) same dtype.
        log_decay_TNK: (T, N, K) float32, see `kda.gates`.
        beta_TN: (T, N) float32.
        state_BNKV: (B, N, K, V) float32; block write_R of each row is written.
        rows: blocks that the rows of the step read and write.
        query_start: (R + 1,) int32 host; row r has the tokens [query_start[r], query_start[r + 1]).
    Returns:
        (T, N, V), dtype and device of v.
    Source: Kimi Linear, Kimi Team 2025, equation 1.
    """
    import torch

    out = torch.empty_like(v_TNV)
    group = v_TNV.shape[1] // k_TJK.shape[1]
    q_TNK, k_TNK = (unit(x).repeat_interleave(group, dim=1) for x in (q_TJK, k_TJK))
    for tokens, read, write in each_row(rows, query_start):
        state = state_BNKV[read] if read >= 0 else torch.zeros_like(state_BNKV[0])
        for token in range(tokens.start, tokens.stop):
            state = state * log_decay_TNK[token].exp()[..., None]
            answer_NV = (k_TNK[token][..., None] * state).sum(1)
            correction_NV = beta_TN[token][:, None] * (v_TNV[token] - answer_NV)
            state = state + k_TNK[token][..., None] * correction_NV[:, None]
            out[token] = (q_TNK[token][..., None] * state).sum(1) * k_TNK.shape[-1] ** -0.5
        state_BNKV[write] = state
    return out
