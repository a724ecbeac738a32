"""Log probabilities of the raw distribution, before bias, penalties and temperature.

They are launched at once and put together later, so that nobody waits for the device in between.
Legend: N rows, R rows of a batch, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from tokenspeed_sdk import TokenLogprobs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

ROWS = 32
"""Rows scored at a time: of a vocabulary of 150,000 the sums in float64 take 40 MB."""


@dataclass(frozen=True, slots=True)
class _Columns:
    """What is known of some rows, on its way to the host; `num_top_N` of the best are asked for."""

    tokens_N: torch.Tensor
    logprobs_N: torch.Tensor
    ranks_N: torch.Tensor
    best_ids: torch.Tensor
    best_logprobs: torch.Tensor
    num_top_N: Sequence[int]

    def entries(self) -> Iterator[TokenLogprobs]:
        """Yield each row's; once they have arrived."""
        columns = (
            *(self.tokens_N, self.logprobs_N, self.ranks_N),
            *(self.best_ids, self.best_logprobs),
        )
        rows = zip(*(column.tolist() for column in columns), self.num_top_N, strict=True)
        for token, logprob, rank, ids, logprobs, num_top in rows:
            top = tuple(zip(ids[:num_top], logprobs[:num_top], strict=True))
            yield TokenLogprobs(token, logprob, rank, top)


def score(
    logits_NV: torch.Tensor, tokens_N: torch.Tensor, num_top_N: Sequence[int]
) -> Callable[[], tuple[TokenLogprobs, ...]]:
    """Score one token of each row: its log probability, its rank, and the best tokens.

    Tokens with a higher logit come before it, and equal ones with a lower id.

    Returns:
        What gives them, once the device has done what was launched here.
    """
    parts = [slice(first, first + ROWS) for first in range(0, len(num_top_N), ROWS)]
    columns = [_launch(logits_NV[part], tokens_N[part], num_top_N[part]) for part in parts]
    return lambda: tuple(entry for column in columns for entry in column.entries())


def _launch(logits_NV: torch.Tensor, tokens_N: torch.Tensor, num_top_N: Sequence[int]) -> _Columns:
    total_N1 = logits_NV.double().logsumexp(dim=1, keepdim=True)
    own_N1 = logits_NV.gather(1, tokens_N[:, None])
    ids_V = torch.arange(logits_NV.shape[1], device=logits_NV.device)
    ahead_NV = (logits_NV > own_N1) | ((logits_NV == own_N1) & (ids_V < tokens_N[:, None]))
    best_ids = _best_ids(logits_NV, min(max(num_top_N), logits_NV.shape[1]))
    return _Columns(
        _to_host(tokens_N),
        _to_host((own_N1.double() - total_N1)[:, 0]),
        _to_host(1 + ahead_NV.sum(dim=1)),
        _to_host(best_ids),
        _to_host(logits_NV.gather(1, best_ids).double() - total_N1),
        num_top_N,
    )


def _best_ids(logits_NV: torch.Tensor, count: int) -> torch.Tensor:
    """Return (N, count) ids of the highest logits, best first, the lower id first on a tie."""
    if logits_NV.dtype == torch.float64 or count == 0:
        order = logits_NV.sort(dim=1, descending=True, stable=True).indices if count else logits_NV
        return order[:, :count].long()
    # Integers in the order of the logits (0.0 makes the two zeros one), and of the ids below them.
    bits_NV = (logits_NV.float() + 0.0).view(torch.int32)
    ordered_NV = (bits_NV ^ ((bits_NV >> 31) & 0x7FFFFFFF)).long()
    last = logits_NV.shape[1] - 1
    ids_V = torch.arange(last, -1, -1, device=logits_NV.device)
    return last - ((ordered_NV << 32) | ids_V).topk(count, dim=1).values.bitwise_and(0xFFFFFFFF)


def _to_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu", non_blocking=True)


class RawScores:
    """Keeps the raw logits of the rows that asked, until their tokens are given."""

    def __init__(self, logits_RV: torch.Tensor, num_logprobs_R: tuple[int, ...] | None) -> None:
        self._counts = num_logprobs_R
        self._asked = [row for row, count in enumerate(num_logprobs_R or ()) if count >= 0]
        self._raw = torch.stack([logits_RV[row] for row in self._asked]) if self._asked else None

    def of(
        self, tokens_R: torch.Tensor, failed_R: torch.Tensor
    ) -> Callable[[], tuple[TokenLogprobs | None, ...]] | None:
        """Score the sampled tokens; None where not asked, or failed."""
        if self._counts is None or self._raw is None:
            return None
        asked, counts = self._asked, self._counts
        tokens_N = torch.stack([tokens_R[row] for row in asked])
        given = score(self._raw, tokens_N, [counts[row] for row in asked])
        failed = _to_host(failed_R)

        def entries() -> tuple[TokenLogprobs | None, ...]:
            by_row = dict(zip(asked, given(), strict=True))
            return tuple(
                None if has_failed else by_row.get(row)
                for row, has_failed in enumerate(failed.tolist())
            )

        return entries
