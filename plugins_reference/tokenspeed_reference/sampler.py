"""Sampler: greedy and seeded categorical sampling, row by row independent.

Temperature 0 takes the argmax. Otherwise one Philox number a row inverts the cumulative
distribution in token-id order. On the host rows are looked at to spare work; a device that computes
beside it is never waited for. Legend: R rows, V vocabulary, T positions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tokenspeed_reference import logprobs, philox
from tokenspeed_reference.filters import keep_top_k, keep_top_p
from tokenspeed_sdk import PURPOSE_SAMPLE, Penalties, SampleResult, SamplingBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenspeed_sdk import TokenLogprobs


class PhiloxSampler:
    """Sampler on any torch device; holds no state between steps.

    Args:
        looks: at values, to spare work; this waits for the device. None: on the host alone.
    """

    def __init__(self, *, device: torch.device, vocab_size: int, looks: bool | None = None) -> None:
        self._device = device
        self._vocab_size = vocab_size
        self._looks = device.type == "cpu" if looks is None else looks

    def sample(self, logits_RV: torch.Tensor, batch: SamplingBatch) -> SampleResult:
        """Sample one token a row."""
        scored = logprobs.RawScores(logits_RV, batch.num_logprobs_R)
        if batch.bias is not None:
            rows, ids, values = batch.bias
            logits_RV.index_put_((rows, ids), values.to(logits_RV.dtype), accumulate=True)
        if batch.penalties is not None:
            logits_RV = _penalised(logits_RV, batch.penalties)
        best_R, tokens_R = logits_RV.max(dim=-1)
        failed_R = ~best_R.isfinite()
        if batch.temperature_R is not None:
            tokens_R = self._draw(logits_RV, tokens_R, failed_R, batch.temperature_R, batch)
        tokens_R = tokens_R.masked_fill(failed_R, 0)
        return SampleResult(tokens_R, failed_R, scored.of(tokens_R, failed_R))

    def logprobs_of(
        self, logits_TV: torch.Tensor, token_ids_T: torch.Tensor, num_top: int
    ) -> Callable[[], tuple[TokenLogprobs, ...]]:
        """Score given tokens."""
        return logprobs.score(logits_TV, token_ids_T, [num_top] * len(logits_TV))

    def _draw(
        self,
        logits_RV: torch.Tensor,
        greedy_R: torch.Tensor,
        failed_R: torch.Tensor,
        temperature_R: torch.Tensor,
        batch: SamplingBatch,
    ) -> torch.Tensor:
        """Draw a token for each row that is neither greedy nor failed."""
        drawn_R = (temperature_R > 0) & ~failed_R
        if not self._looks:
            divisor_R = torch.where(drawn_R, temperature_R, 1.0)
            probs_RV = _probabilities(logits_RV.float(), divisor_R, batch, looks=False)
            picked_R = _picked(probs_RV, batch.seeds_R, batch.output_index_R)
            return torch.where(drawn_R, picked_R, greedy_R)
        rows = drawn_R.nonzero().squeeze(1)
        if not len(rows):
            return greedy_R
        probs = _probabilities(logits_RV[rows].float(), temperature_R[rows], batch, rows)
        picked = _picked(probs, batch.seeds_R[rows], batch.output_index_R[rows])
        return greedy_R.index_copy(0, rows, picked)


def _picked(
    probs_RV: torch.Tensor, seeds_R: torch.Tensor, output_index_R: torch.Tensor
) -> torch.Tensor:
    """Return the token that each row's number stands for."""
    uniform = philox.uniform(seeds_R, output_index_R, PURPOSE_SAMPLE)
    cumulative = probs_RV.double().cumsum(dim=-1)
    total = cumulative[:, -1:]
    # Below the total even where the product rounds up: what is picked has a probability.
    target = torch.minimum(uniform[:, None] * total, total.nextafter(torch.zeros_like(total)))
    return torch.searchsorted(cumulative, target, right=True).squeeze(1)


def _penalised(logits_RV: torch.Tensor, penalties: Penalties) -> torch.Tensor:
    counts = penalties.output_counts_RV
    repetition = penalties.repetition_R[:, None]
    scaled = torch.where(logits_RV > 0, logits_RV / repetition, logits_RV * repetition)
    logits = torch.where((counts > 0) | penalties.prompt_mask_RV, scaled, logits_RV)
    logits -= penalties.frequency_R[:, None] * counts
    logits -= penalties.presence_R[:, None] * (counts > 0)
    return logits


def _probabilities(
    logits_RV: torch.Tensor,
    temperature_R: torch.Tensor,
    batch: SamplingBatch,
    rows: torch.Tensor | None = None,
    *,
    looks: bool = True,
) -> torch.Tensor:
    """Filter by top_k, top_p and min_p; what is dropped is 0, the rest is not renormalised.

    Args:
        rows: of the batch that the logits are; None: all of them.
    """
    logits_RV = logits_RV / temperature_R[:, None]
    top_k_R, top_p_R, min_p_R = (
        values if values is None or rows is None else values[rows]
        for values in (batch.top_k_R, batch.top_p_R, batch.min_p_R)
    )
    if top_k_R is not None:
        keep_top_k(logits_RV, top_k_R, looks=looks)
    probs_RV = logits_RV.softmax(dim=-1)
    if top_p_R is not None:
        keep_top_p(probs_RV, top_p_R, looks=looks)
    if min_p_R is not None:
        floor = min_p_R[:, None] * probs_RV.max(dim=-1, keepdim=True).values
        probs_RV.masked_fill_(probs_RV < floor, 0)
    return probs_RV
