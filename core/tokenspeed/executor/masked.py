"""Sampling where some positions have a mask: samplers see masked logits and know of no grammar.

Log probabilities are those of the logits before the mask. P positions, K masked, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenspeed.contracts.sampler import (
        Sampler,
        SampleResult,
        SamplingBatch,
        TokenLogprobs,
    )
    from tokenspeed.grammar import StepMasks

    MaskLogits = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class MaskedSampler:
    """A Sampler, and the kernel of `logits.mask` before it."""

    def __init__(self, sampler: Sampler, mask_logits: MaskLogits) -> None:
        self._sampler = sampler
        self._mask_logits = mask_logits

    def sample(
        self, logits_PV: torch.Tensor, batch: SamplingBatch, masks: StepMasks | None
    ) -> SampleResult:
        """Sample one token a position, with `masks` where they are."""
        if masks is None:
            return self._sampler.sample(logits_PV, batch)
        scored = _scored(batch, masks)
        # Copied here: the mask may be written over the logits.
        plain_SV = logits_PV[scored] if scored else None
        masked_PV = self._masked(logits_PV, masks)
        sample = self._sampler.sample(masked_PV, _without_scores(batch, scored))
        if plain_SV is None or batch.num_logprobs_R is None:
            return sample
        entries = list(sample.logprobs or [None] * len(batch.num_logprobs_R))
        for index, place in enumerate(scored):
            entries[place] = self._score(
                plain_SV[index : index + 1],
                sample.tokens_R[place : place + 1],
                batch.num_logprobs_R[place],
            )
        return dataclasses.replace(sample, logprobs=tuple(entries))

    def _masked(self, logits_PV: torch.Tensor, masks: StepMasks) -> torch.Tensor:
        device = logits_PV.device
        words_KW = torch.from_numpy(masks.words_KW).to(device, non_blocking=True)
        if len(masks.positions_K) == len(logits_PV):
            return self._mask_logits(logits_PV, words_KW)
        positions_K = torch.from_numpy(masks.positions_K).to(device)
        masked_KV = self._mask_logits(logits_PV.index_select(0, positions_K), words_KW)
        return logits_PV.index_copy(0, positions_K, masked_KV)

    def _score(
        self, plain_1V: torch.Tensor, token_1: torch.Tensor, num_top: int
    ) -> TokenLogprobs | None:
        if not bool(torch.isfinite(plain_1V).all()):
            return None
        return self._sampler.logprobs_of(plain_1V, token_1, num_top)[0]


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
