"""Log probabilities for rows that ask: results are on the host, so this waits for the device.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tokenspeed_sdk import TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ROWS = 64
"""Rows scored at a time: what is sorted of a vocabulary of 150,000 fits in 200 MB."""


def scores(
    logits_NV: torch.Tensor, tokens_N: torch.Tensor, num_top_N: Sequence[int]
) -> Iterator[TokenLogprobs]:
    """Score one token of each row: log softmax, rank and the most likely tokens.

    Args:
        tokens_N: (N,) int64 device.
        num_top_N: how many of the most likely, by row.
    """
    for first in range(0, len(num_top_N), ROWS):
        part = slice(first, first + ROWS)
        yield from _scored(logits_NV[part], tokens_N[part], num_top_N[part])


def _scored(
    logits_NV: torch.Tensor, tokens_N: torch.Tensor, num_top_N: Sequence[int]
) -> Iterator[TokenLogprobs]:
    total_N1 = logits_NV.double().logsumexp(1, keepdim=True)
    own_N1 = logits_NV.gather(1, tokens_N[:, None])
    ids_V = torch.arange(logits_NV.shape[1], device=logits_NV.device)
    ahead_NV = (logits_NV > own_N1) | ((logits_NV == own_N1) & (ids_V < tokens_N[:, None]))
    most = max(num_top_N)
    # Stable, so that the lower id comes first on a tie.
    order = logits_NV.sort(dim=1, descending=True, stable=True) if most else None
    best = order.values[:, :most] if order else logits_NV[:, :0]
    best_ids = order.indices[:, :most].tolist() if order else [()] * len(num_top_N)
    columns = (
        tokens_N.tolist(),
        (own_N1.double() - total_N1).squeeze(1).tolist(),
        (1 + ahead_NV.sum(1)).tolist(),
        best_ids,
        (best.double() - total_N1).tolist(),
        num_top_N,
    )
    for token, logprob, rank, ids, logprobs, num_top in zip(*columns, strict=True):
        top = tuple(zip(ids[:num_top], logprobs[:num_top], strict=True))
        yield TokenLogprobs(token, logprob, rank, top)
