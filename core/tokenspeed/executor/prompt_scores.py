"""Log probabilities of prompt tokens, scored as their chunks are computed.

Logits of all positions are made in slices of bounded memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch

    from tokenspeed.contracts.model import CausalLM
    from tokenspeed.contracts.sampler import Sampler, Scores
    from tokenspeed.contracts.step import StepPlan
    from tokenspeed.executor.host_link import HostLink
    from tokenspeed.executor.requests import ExecutorRequest

_SLICE_BYTES = 64 * 2**20


class PromptScorer:
    """Scores the prompt tokens that a chunk's hidden states predict."""

    def __init__(
        self, model: CausalLM, sampler: Sampler, *, vocab_size: int, link: HostLink
    ) -> None:
        self._model = model
        self._sampler = sampler
        self._link = link
        self._slice_tokens = max(1, _SLICE_BYTES // (4 * vocab_size))

    def spans(self, plan: StepPlan, row: int, request: ExecutorRequest) -> list[tuple[int, int]]:
        """Return the hidden states, as [start, stop) of the step's, whose logits `score` makes.

        The chunk's positions [c, c + q) predict tokens [c + 1, c + 1 + q); those below
        `num_scored` were returned before (a retracted prompt is computed twice).
        """
        start, stop = int(plan.query_start[row]), int(plan.query_start[row + 1])
        first_target = int(plan.context_tokens[row]) + 1
        shift = start - first_target
        low = shift + max(first_target, request.num_scored)
        high = shift + min(first_target + stop - start, len(request.prompt_ids))
        size = self._slice_tokens
        return [(first, min(first + size, high)) for first in range(low, high, size)]

    def score(
        self, plan: StepPlan, row: int, request: ExecutorRequest, hidden_TD: torch.Tensor
    ) -> list[Scores]:
        """Return the scores of prompt tokens that this row's chunk is the first to predict."""
        num_top = request.params.prompt_logprobs
        assert num_top is not None
        shift = int(plan.context_tokens[row]) + 1 - int(plan.query_start[row])
        scores = []
        for start, stop in self.spans(plan, row, request):
            logits = self._model.compute_logits(hidden_TD[start:stop])
            ids = request.prompt_ids[start + shift : stop + shift].astype(np.int64)
            (ids_T,) = self._link.upload(ids)
            scores.append(self._sampler.logprobs_of(logits, ids_T, num_top))
            request.num_scored = stop + shift
        return scores
