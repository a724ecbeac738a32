"""Logits to tokens: a row at a time, so that a row never depends on its company.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from tokenspeed_granite.philox import uniform
from tokenspeed_sdk import PURPOSE_SAMPLE, SampleResult, TokenLogprobs

if TYPE_CHECKING:
    from tokenspeed_sdk import Penalties, SamplingBatch


class Sampler:
    """Sampler by inverse transform over the token ids."""

    def __init__(self, **_: object) -> None:
        """Take what the engine says of the model; the logits tell the same."""

    def sample(self, logits_RV: torch.Tensor, batch: SamplingBatch) -> SampleResult:
        """Draw one token a row."""
        raw_RV = logits_RV.float()
        failed_R = ~((raw_RV < math.inf).all(-1) & raw_RV.isfinite().any(-1))
        steered_RV = _penalised(_biased(raw_RV, batch.bias), batch.penalties)
        failed_R |= ~steered_RV.isfinite().any(-1)
        tokens_R = steered_RV.argmax(-1).masked_fill_(failed_R, 0)
        if batch.temperature_R is not None:
            for row in ((batch.temperature_R > 0) & ~failed_R).nonzero().flatten().tolist():
                tokens_R[row] = _draw(steered_RV[row], batch, row)
        return SampleResult(tokens_R, failed_R, _scores(raw_RV, tokens_R, failed_R, batch))

    def logprobs_of(
        self, logits_TV: torch.Tensor, token_ids_T: torch.Tensor, num_top: int
    ) -> tuple[TokenLogprobs, ...]:
        """Score given tokens."""
        tokens = token_ids_T.tolist()
        return tuple(
            _score(logits_V, token, num_top)
            for logits_V, token in zip(logits_TV.float(), tokens, strict=True)
        )


def _biased(
    logits_RV: torch.Tensor, bias: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None
) -> torch.Tensor:
    if bias is None:
        return logits_RV
    rows, ids, values = bias
    return logits_RV.index_put((rows.long(), ids.long()), values.float(), accumulate=True)


def _penalised(logits_RV: torch.Tensor, penalties: Penalties | None) -> torch.Tensor:
    if penalties is None:
        return logits_RV
    counts_RV = penalties.output_counts_RV
    seen_RV = penalties.prompt_mask_RV | (counts_RV > 0)
    factor_R1 = penalties.repetition_R[:, None]
    repeated_RV = torch.where(logits_RV > 0, logits_RV / factor_R1, logits_RV * factor_R1)
    logits_RV = torch.where(seen_RV, repeated_RV, logits_RV)
    logits_RV = logits_RV - penalties.frequency_R[:, None] * counts_RV
    return logits_RV - penalties.presence_R[:, None] * (counts_RV > 0)


def _draw(logits_V: torch.Tensor, batch: SamplingBatch, row: int) -> int:
    """Filter one row, then walk up the cumulated probabilities."""
    assert batch.temperature_R is not None
    weights_V = (logits_V.double() / batch.temperature_R[row].double()).softmax(-1)
    top_k = 0 if batch.top_k_R is None else int(batch.top_k_R[row])
    if 0 < top_k < len(weights_V):
        weights_V = _kept(weights_V, weights_V.topk(top_k).values[-1])
    top_p = 1.0 if batch.top_p_R is None else float(batch.top_p_R[row])
    if top_p < 1:
        down_V = weights_V.sort(descending=True).values
        before_V = down_V.cumsum(-1) - down_V
        weights_V = _kept(weights_V, down_V[before_V < top_p][-1])
    if batch.min_p_R is not None:
        weights_V = _kept(weights_V, weights_V.max() * batch.min_p_R[row])
    sums_V = weights_V.cumsum(-1)
    number = uniform(int(batch.seeds_R[row]), int(batch.output_index_R[row]), PURPOSE_SAMPLE)
    place = int(torch.searchsorted(sums_V, number * sums_V[-1], right=True))
    return min(place, int(weights_V.nonzero()[-1]))


def _kept(weights_V: torch.Tensor, lowest: torch.Tensor) -> torch.Tensor:
    """Keep what is at least this likely; the rest of the probability is shared out again."""
    weights_V = weights_V.masked_fill(weights_V < lowest, 0)
    return weights_V / weights_V.sum()


def _scores(
    raw_RV: torch.Tensor, tokens_R: torch.Tensor, failed_R: torch.Tensor, batch: SamplingBatch
) -> tuple[TokenLogprobs | None, ...] | None:
    if batch.num_logprobs_R is None:
        return None
    rows = zip(raw_RV, tokens_R.tolist(), failed_R.tolist(), batch.num_logprobs_R, strict=True)
    return tuple(
        None if wanted < 0 or failed else _score(logits_V, token, wanted)
        for logits_V, token, failed, wanted in rows
    )


def _score(logits_V: torch.Tensor, token: int, num_top: int) -> TokenLogprobs:
    own = logits_V[token]
    rank = 1 + int((logits_V > own).sum()) + int((logits_V[:token] == own).sum())
    log_sum = logits_V.double().logsumexp(-1)
    order = logits_V.sort(descending=True, stable=True).indices[:num_top].tolist()
    top = tuple((item, float(logits_V[item] - log_sum)) for item in order)
    return TokenLogprobs(token, float(own - log_sum), rank, top)
