"""Kernels of attention over packed rows, and of the merge of partial results.

Legend: T query tokens, N query heads, K kv heads, G = N / K, H head dim, V value dim, S keys,
P parts.
"""

from __future__ import annotations

from typing import Any

import torch


def varlen_attention(
    q_TNH: torch.Tensor,
    k_SKH: torch.Tensor,
    v_SKV: torch.Tensor,
    query_start: Any,
    key_start: Any,
    *,
    scale: float,
    is_causal: bool = True,
    window: int = 0,
    softcap: float = 0.0,
    sinks_N: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend row by row in float32."""
    out_TNV = q_TNH.new_zeros(*q_TNH.shape[:2], v_SKV.shape[-1])
    lse_TN = q_TNH.new_full(q_TNH.shape[:2], -torch.inf, dtype=torch.float32)
    group = q_TNH.shape[1] // k_SKH.shape[1]
    for row in range(len(query_start) - 1):
        queries, keys = (
            slice(int(start[row]), int(start[row + 1])) for start in (query_start, key_start)
        )
        q_NTH = q_TNH[queries].float().transpose(0, 1)
        k_NSH, v_NSV = (
            x[keys].float().transpose(0, 1).repeat_interleave(group, dim=0) for x in (k_SKH, v_SKV)
        )
        scores_NTS = q_NTH @ k_NSH.mT * scale
        if softcap:
            scores_NTS = (scores_NTS / softcap).tanh_().mul_(softcap)
        if is_causal:
            scores_NTS.masked_fill_(_hidden(scores_NTS[0], window), -torch.inf)
        lse_NT = scores_NTS.logsumexp(-1)
        if sinks_N is not None:
            lse_NT = torch.logaddexp(lse_NT, sinks_N.float()[:, None])
        weights_NTS = (scores_NTS - lse_NT[..., None]).exp_()
        out_TNV[queries] = (weights_NTS @ v_NSV).transpose(0, 1).type_as(out_TNV)
        lse_TN[queries] = lse_NT.T
    return out_TNV, lse_TN


def _hidden(scores_TS: torch.Tensor, window: int) -> torch.Tensor:
    """Return (T, S) bool: keys after each query's own, and those before its window."""
    num_tokens, num_keys = scores_TS.shape
    everything = torch.ones_like(scores_TS, dtype=torch.bool)
    future = everything.triu(num_keys - num_tokens + 1)
    return future | everything.tril(num_keys - num_tokens - window) if window else future


def merge_attention(
    out_PTNV: torch.Tensor, lse_PTN: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weigh the parts in float32."""
    lse_TN = lse_PTN.logsumexp(0)
    shares_PTN = (lse_PTN - lse_TN).exp_().masked_fill_(lse_PTN == -torch.inf, 0.0)
    return (shares_PTN[..., None] * out_PTNV.float()).sum(0).type_as(out_PTNV), lse_TN
