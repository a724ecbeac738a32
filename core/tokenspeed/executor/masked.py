"""Sampling where some positions have a mask: samplers see masked logits and know of no grammar.

Log probabilities are those of the logits before the mask. P positions, K masked, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch

from tokenspeed.contracts.sampler import scores_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tokenspeed.contracts.sampler import (
        Sampler,
        SampleResult,
        SamplingBatch,
        Scores,
        TokenLogprobs,
    )
    from tokenspeed.executor.host_link import HostLink
    from tokenspeed.grammar import StepMasks

    MaskLogits = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class MaskedSampler:
    """A Sampler, and the kernel of `logits.mask` before it."""

    def __init__(self, sampler: Sampler, mask_logits: MaskLogits, link: HostLink) -> None:
        self._sampler = sampler
        self._mask_logits = mask_logits
        self._link = link

    def sample(
        self, logits_PV: torch.Tensor, batch: SamplingBatch, masks: StepMasks | None
    ) -> SampleResult:
        """Sample one token a position, with `masks` where they are."""
        if masks is None:
            return self._sampler.sample(logits_PV, batch)
        scored = _scored(batch, masks)
        # Copied here: the mask may be written over the logits.
        plain = [logits_PV[place : place + 1].clone() for place in scored]
        masked_PV = self._masked(logits_PV, masks)
        sample = self._sampler.sample(masked_PV, _without_scores(batch, scored))
        if batch.num_logprobs_R is None or not scored:
            return sample
        added = {
            place: self._score(plain_1V, sample.tokens_R[place], batch.num_logprobs_R[place])
            for place, plain_1V in zip(scored, plain, strict=True)
        }
        others = sample.logprobs or (None,) * len(batch.num_logprobs_R)
        return dataclasses.replace(sample, logprobs=lambda: _merged(others, added))

    def _masked(self, logits_PV: torch.Tensor, masks: StepMasks) -> torch.Tensor:
        words_KW, positions_K = self._link.upload(masks.words_KW, masks.positions_K)
        if len(masks.positions_K) == len(logits_PV):
            return self._mask_logits(logits_PV, words_KW)
        masked_KV = self._mask_logits(logits_PV.index_select(0, positions_K), words_KW)
        return logits_PV.index_copy(0, positions_K, masked_KV)

    def _score(
        self, plain_1V: torch.Tensor, token: torch.Tensor, num_top: int
    ) -> tuple[torch.Tensor, Scores]:
        """Return whether all logits are finite, a host flag to read later, and the score."""
        is_finite = self._link.download(torch.isfinite(plain_1V).all())
        return is_finite, self._sampler.logprobs_of(plain_1V, token[None], num_top)


def _merged(
    others: Scores, added: Mapping[int, tuple[torch.Tensor, Scores]]
) -> tuple[TokenLogprobs | None, ...]:
    entries = list(scores_of(others))
    for place, (is_finite, scores) in added.items():
        (entry,) = scores_of(scores)
        entries[place] = entry if bool(is_finite) else None
    return tuple(entries)


def _scored(batch: SamplingBatch, masks: StepMasks) -> list[int]:
    """Return the masked positions whose log probabilities are asked for."""
    wanted = batch.num_logprobs_R
    if wanted is None:
        return []
    return [place for place in masks.positions_K.tolist() if wanted[place] >= 0]


def _without_scores(batch: SamplingBatch, places: Sequence[int]) -> SamplingBatch:
    if not places or batch.num_logprobs_R is None:
        return batch
    left = np.array(batch.num_logprobs_R)
    left[list(places)] = -1
    counts = tuple(left.tolist()) if (left >= 0).any() else None
    return dataclasses.replace(batch, num_logprobs_R=counts)
