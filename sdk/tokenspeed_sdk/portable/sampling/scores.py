"""Log probabilities for rows that ask: launched at once, and put together on the host later.

Legend: N rows, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tokenspeed_sdk import TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROWS = 64
"""Rows scored at a time: what is sorted of a vocabulary of 150,000 fits in 200 MB."""


def scores(
    logits_NV: torch.Tensor, tokens_N: torch.Tensor, num_top_N: Sequence[int]
) -> Callable[[], tuple[TokenLogprobs, ...]]:
    """Score one token of each row: log softmax, rank and the most likely tokens.

    Args:
        tokens_N: (N,) int64 device.
        num_top_N: how many of the most likely, by row.
    Returns:
        What gives them, once the device has done what was launched here.
    """
    parts = [slice(first, first + ROWS) for first in range(0, len(num_top_N), ROWS)]
    columns = [_launched(logits_NV[part], tokens_N[part], max(num_top_N[part])) for part in parts]
    return lambda: tuple(
        entry
        for part, column in zip(parts, columns, strict=True)
        for entry in _entries(column, num_top_N[part])
    )


def _launched(
    logits_NV: torch.Tensor, tokens_N: torch.Tensor, most: int
) -> tuple[torch.Tensor, ...]:
    """Return tokens, log probabilities, ranks, and ids and log probabilities of the best."""
    total_N1 = logits_NV.double().logsumexp(1, keepdim=True)
    own_N1 = logits_NV.gather(1, tokens_N[:, None])
    ids_V = torch.arange(logits_NV.shape[1], device=logits_NV.device)
    ahead_NV = (logits_NV > own_N1) | ((logits_NV == own_N1) & (ids_V < tokens_N[:, None]))
    best, best_ids = logits_NV[:, :0], tokens_N[:, None][:, :0]
    if most:
        # Stable, so that the lower id comes first on a tie.
        order = logits_NV.sort(dim=1, descending=True, stable=True)
        best, best_ids = order.values[:, :most], order.indices[:, :most]
    columns = (
        tokens_N,
        (own_N1.double() - total_N1).squeeze(1),
        1 + ahead_NV.sum(1),
        best_ids,
        best.double() - total_N1,
    )
    return tuple(column.to("cpu", non_blocking=True) for column in columns)


def _entries(
    columns: tuple[torch.Tensor, ...], num_top_N: Sequence[int]
) -> Iterator[TokenLogprobs]:
    rows = zip(*(column.tolist() for column in columns), num_top_N, strict=True)
    for token, logprob, rank, ids, logprobs, num_top in rows:
        top = tuple(zip(ids[:num_top], logprobs[:num_top], strict=True))
        yield TokenLogprobs(token, logprob, rank, top)
