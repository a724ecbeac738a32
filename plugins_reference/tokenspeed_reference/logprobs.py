"""Log probabilities of the raw distribution, before bias, penalties and temperature.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

import torch

from tokenspeed_sdk import TokenLogprobs


def token_logprobs(logits_V: torch.Tensor, token_id: int, num_top: int) -> TokenLogprobs:
    """Score one token: its log probability, its rank, and the best `num_top` tokens.

    Tokens with a higher logit come before it, and equal ones with a lower id.
    """
    total = float(logits_V.double().logsumexp(dim=0))
    own = logits_V[token_id]
    ahead = (logits_V > own).sum() + (logits_V[:token_id] == own).sum()
    top = tuple((best, float(logits_V[best]) - total) for best in _best_ids(logits_V, num_top))
    return TokenLogprobs(token_id, float(own) - total, int(ahead) + 1, top)


def _best_ids(logits_V: torch.Tensor, count: int) -> list[int]:
    """Ids of the highest logits, best first, the lower id first on a tie."""
    if count == 0:
        return []
    count = min(count, logits_V.shape[0])
    cut = logits_V.topk(count).values[-1]
    ids = (logits_V >= cut).nonzero().flatten()
    order = logits_V[ids].sort(descending=True, stable=True).indices[:count]
    best: list[int] = ids[order].tolist()
    return best


class RawScores:
    """Keeps the raw logits of the rows that asked, until their tokens are known."""

    def __init__(self, logits_RV: torch.Tensor, num_logprobs_R: tuple[int, ...] | None) -> None:
        self._counts = num_logprobs_R
        asked = [row for row, count in enumerate(num_logprobs_R or ()) if count >= 0]
        self._raw = {row: logits_RV[row].clone() for row in asked}

    def of(
        self, tokens_R: torch.Tensor, failed_R: torch.Tensor
    ) -> tuple[TokenLogprobs | None, ...] | None:
        """Score the sampled tokens; None where not asked, or failed."""
        if self._counts is None:
            return None
        tokens, failed = tokens_R.tolist(), failed_R.tolist()
        return tuple(
            None if count < 0 or failed[row] else token_logprobs(self._raw[row], tokens[row], count)
            for row, count in enumerate(self._counts)
        )
