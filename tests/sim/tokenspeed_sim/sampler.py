"""Logits to tokens, by calls of fixed shapes that never look at a result: fit for graphs.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

import torch

from tokenspeed_reference import philox
from tokenspeed_reference.sampler import PhiloxSampler
from tokenspeed_sdk import PURPOSE_SAMPLE, SamplingBatch


class Sampler(PhiloxSampler):
    """Sampler; what is not here is the reference's. Draws for all rows, and keeps what is needed.

    Draws stay Philox numbers keyed by (seed, output position, purpose): a seeded request then
    answers the same everywhere.
    """

    def _draw(
        self,
        logits_RV: torch.Tensor,
        greedy_R: torch.Tensor,
        failed_R: torch.Tensor,
        temperature_R: torch.Tensor,
        batch: SamplingBatch,
    ) -> torch.Tensor:
        """Draw a token for each row; greedy and failed ones keep theirs."""
        is_drawn_R = (temperature_R > 0) & ~failed_R
        divisor_R = torch.where(is_drawn_R, temperature_R, 1)
        probs_RV = _probabilities(logits_RV.float() / divisor_R[:, None], batch)
        uniform = philox.uniform(batch.seeds_R, batch.output_index_R, PURPOSE_SAMPLE)
        cumulative = probs_RV.double().cumsum(dim=-1)
        total = cumulative[:, -1:]
        target = torch.minimum(uniform[:, None] * total, total.nextafter(torch.zeros_like(total)))
        picked_R = torch.searchsorted(cumulative, target, right=True).squeeze(1)
        return torch.where(is_drawn_R, picked_R, greedy_R)


def _probabilities(logits_RV: torch.Tensor, batch: SamplingBatch) -> torch.Tensor:
    """Filter by top_k, top_p and min_p; what is dropped is 0, the rest is not renormalised."""
    last = logits_RV.shape[1] - 1
    if batch.top_k_R is not None:
        kept_R = torch.where(batch.top_k_R > 0, batch.top_k_R, last + 1).long().clamp(max=last + 1)
        ordered_RV = logits_RV.sort(dim=-1, descending=True).values
        logits_RV = logits_RV.masked_fill(
            logits_RV < ordered_RV.gather(1, kept_R[:, None] - 1), -torch.inf
        )
    probs_RV = logits_RV.softmax(dim=-1)
    if batch.top_p_R is not None:
        ordered_RV = probs_RV.sort(dim=-1, descending=True).values
        is_before_RV = ordered_RV.double().cumsum(dim=-1) < batch.top_p_R[:, None]
        cut_R1 = ordered_RV.gather(1, is_before_RV.sum(-1, keepdim=True).clamp(max=last))
        is_cut_RV = (probs_RV < cut_R1) & (batch.top_p_R[:, None] < 1)
        probs_RV = probs_RV.masked_fill(is_cut_RV, 0)
    if batch.min_p_R is not None:
        floor_R1 = batch.min_p_R[:, None] * probs_RV.max(dim=-1, keepdim=True).values
        probs_RV = probs_RV.masked_fill(probs_RV < floor_R1, 0)
    return probs_RV
