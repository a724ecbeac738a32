"""Sampler: greedy and seeded categorical sampling, row by row independent.

Temperature 0 takes the argmax. Otherwise one Philox number a row inverts the cumulative
distribution in token-id order. Legend: R rows, V vocabulary, T positions.
"""

from __future__ import annotations

import torch

from tokenspeed_reference import logprobs, philox
from tokenspeed_sdk import PURPOSE_SAMPLE, Penalties, SampleResult, SamplingBatch, TokenLogprobs


class PhiloxSampler:
    """Sampler on any torch device; holds no state between steps."""

    def __init__(self, *, device: torch.device, vocab_size: int) -> None:
        self._device = device
        self._vocab_size = vocab_size

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
    ) -> tuple[TokenLogprobs, ...]:
        """Score given tokens."""
        return tuple(
            logprobs.token_logprobs(row_V, token_id, num_top)
            for row_V, token_id in zip(logits_TV, token_ids_T.tolist(), strict=True)
        )

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
        rows = drawn_R.nonzero().squeeze(1)
        if not len(rows):
            return greedy_R
        probs = _probabilities(logits_RV[rows].float(), temperature_R[rows], batch, rows)
        uniform = philox.uniform(batch.seeds_R[rows], batch.output_index_R[rows], PURPOSE_SAMPLE)
        cumulative = probs.double().cumsum(dim=-1)
        total = cumulative[:, -1:]
        # Below the total even where the product rounds up: what is picked has a probability.
        target = torch.minimum(uniform[:, None] * total, total.nextafter(torch.zeros_like(total)))
        picked = torch.searchsorted(cumulative, target, right=True).squeeze(1)
        return greedy_R.index_copy(0, rows, picked)


def _penalised(logits_RV: torch.Tensor, penalties: Penalties) -> torch.Tensor:
    counts = penalties.output_counts_RV
    repetition = penalties.repetition_R[:, None]
    scaled = torch.where(logits_RV > 0, logits_RV / repetition, logits_RV * repetition)
    logits = torch.where((counts > 0) | penalties.prompt_mask_RV, scaled, logits_RV)
    logits -= penalties.frequency_R[:, None] * counts
    logits -= penalties.presence_R[:, None] * (counts > 0)
    return logits


def _probabilities(
    logits_RV: torch.Tensor, temperature_R: torch.Tensor, batch: SamplingBatch, rows: torch.Tensor
) -> torch.Tensor:
    """Filter by top_k, top_p and min_p; what is dropped is 0, the rest is not renormalised."""
    logits_RV = logits_RV / temperature_R[:, None]
    if batch.top_k_R is not None:
        _keep_top_k(logits_RV, batch.top_k_R[rows])
    probs_RV = logits_RV.softmax(dim=-1)
    if batch.top_p_R is not None:
        _keep_top_p(probs_RV, batch.top_p_R[rows])
    if batch.min_p_R is not None:
        floor = batch.min_p_R[rows, None] * probs_RV.max(dim=-1, keepdim=True).values
        probs_RV.masked_fill_(probs_RV < floor, 0)
    return probs_RV


def _keep_top_k(logits_RV: torch.Tensor, top_k_R: torch.Tensor) -> None:
    """Forbid all below the k-th best value; ties with it stay."""
    vocab_size = logits_RV.shape[-1]
    wanted_R = torch.where((top_k_R <= 0) | (top_k_R > vocab_size), vocab_size, top_k_R).long()
    limited = wanted_R < vocab_size
    if not limited.any():
        return
    most = int(wanted_R[limited].max())
    best = logits_RV.topk(most, dim=-1).values
    cut = best.gather(1, (wanted_R.clamp(max=most) - 1)[:, None])
    logits_RV.masked_fill_((logits_RV < cut) & limited[:, None], -torch.inf)


def _keep_top_p(probs_RV: torch.Tensor, top_p_R: torch.Tensor) -> None:
    """Zero all below the value at which the sorted sum reaches p; ties with it stay.

    Tokens below (1 - p) / V together weigh less than 1 - p: none of them is the last one kept,
    so that only the few above need sorting.
    """
    for probs_V, top_p in zip(probs_RV, top_p_R.tolist(), strict=True):
        if top_p < 1:
            # Half of it, since the probabilities sum to 1 only up to rounding.
            floor = 0.5 * (1 - top_p) / probs_V.shape[0]
            ordered = probs_V[probs_V >= floor].sort(descending=True).values
            num_before = int((ordered.double().cumsum(dim=0) < top_p).sum())
            cut = ordered[min(num_before, ordered.shape[0] - 1)]
            probs_V.masked_fill_(probs_V < cut, 0)
