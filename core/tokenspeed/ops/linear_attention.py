"""Linear attention: a matrix per head in place of a cache, decayed and corrected token by token.

Legend: T tokens, R rows of the step, B blocks of the state group, J key heads, N value heads,
K key dim, V value dim.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenspeed.contracts.kernel import Case
from tokenspeed.ops.declare import FLOAT_TOLERANCE, operator
from tokenspeed.ops.draw import Draw
from tokenspeed.ops.state import LENGTHS, each_row, random_rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from tokenspeed.contracts.kernel import Domain
    from tokenspeed.contracts.model import StateRows

RULE_TOLERANCE = {**FLOAT_TOLERANCE, "float32": (1e-4, 1e-4)}
"""Chunks solve a triangular system, whose rounding grows with the chunk."""
UNIT_EPS = 1e-6
"""Added to the squared length of queries and keys before they are made unit vectors."""


def _gate_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for tokens, heads in ((0, 2), (1, 2), (7, 32)):
        a, b = draw.beside(tokens, heads, scale=5), draw.beside(tokens, heads, scale=5)
        yield Case(f"{tokens} x {heads} heads", (a, b, draw.floats(heads), draw.floats(heads)))


def _rule_cases(domain: Domain) -> Iterator[Case]:
    draw = Draw(domain)
    for (name, lengths), (key_heads, heads), dims in zip(
        LENGTHS.items(),
        ((1, 1), (1, 3), (2, 4), (2, 2), (4, 4)),
        ((8, 4), (8, 4), (8, 12), (16, 16), (5, 3)),
        strict=True,
    ):
        yield Case(name, _rule_args(draw, lengths, (key_heads, heads), dims, decay=3.0))
    args = _rule_args(draw, (1, 200), (1, 2), (8, 4), decay=200.0)
    yield Case("strong decays", args)


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
        -decay * draw.uniform(tokens, value_heads).square(),
        draw.uniform(tokens, value_heads),
        draw.wide(2 * len(lengths) + 1, value_heads, key_dim, value_dim),
        rows,
        query_start,
    )


@operator(
    "linear_attention.delta_gates",
    cases=_gate_cases,
    result_dtypes=("float32", "float32"),
    tokens=("a_TN", "b_TN"),
    placement="T N, T N, N, N -> T N, T N",
)
def delta_gates(
    a_TN: torch.Tensor, b_TN: torch.Tensor, a_log_N: torch.Tensor, dt_bias_N: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute how much each head forgets and learns: -exp(a_log) softplus(a + dt_bias), sigmoid(b).

    Args:
        a_TN, b_TN: (T, N) float, device.
        a_log_N, dt_bias_N: (N,) same dtype.
    Returns:
        Logarithm of the decay, at most 0, and learning rate in (0, 1); (T, N) float32.
    Source: Gated Delta Networks, Yang et al. 2024, section 3.3; decay as in Mamba-2.
    """
    log_decay = -a_log_N.exp() * (1 + (a_TN + dt_bias_N).exp()).log()
    return log_decay, b_TN.sigmoid()


@operator(
    "linear_attention.gated_delta",
    tolerance=RULE_TOLERANCE,
    cases=_rule_cases,
    tokens=("q_TJK", "k_TJK", "v_TNV", "log_decay_TN", "beta_TN"),
    placement="T J K!, T J K!, T N V, T N, T N, _ N K! V, -, - -> T N V; J<N",
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
    made unit vectors. Arithmetic is float32. Rows of one token are steps of a decode, longer ones
    are chunks of a prompt, which kernels may compute in a form of their own.

    Args:
        q_TJK, k_TJK: (T, J, K) float, device; value head n reads key head n J // N.
        v_TNV: (T, N, V) same dtype.
        log_decay_TN, beta_TN: (T, N) float32, see `delta_gates`.
        state_BNKV: (B, N, K, V) float32; block write_R of each row is written.
        rows: blocks that the rows of the step read and write.
        query_start: (R + 1,) int32 host; row r has the tokens [query_start[r], query_start[r + 1]).
    Returns:
        (T, N, V), dtype and device of v.
    Source: Gated Delta Networks, Yang et al. 2024, equation 10.
    """
    import torch

    out = torch.empty_like(v_TNV)
    group = v_TNV.shape[1] // k_TJK.shape[1]
    q_TNK, k_TNK = (unit(x).repeat_interleave(group, dim=1) for x in (q_TJK, k_TJK))
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


def unit(x: torch.Tensor) -> torch.Tensor:
    """Return x at length 1 along the last axis."""
    return x / (x.square().sum(-1, keepdim=True) + UNIT_EPS).sqrt()
