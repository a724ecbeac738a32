"""Log probabilities of prompt tokens, scored as their chunks are computed.

Logits of all positions are made in slices of bounded memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from tokenspeed.contracts.model import CausalLM
    from tokenspeed.contracts.sampler import Sampler, TokenLogprobs
    from tokenspeed.contracts.step import StepPlan
    from tokenspeed.executor.requests import ExecutorRequest

_SLICE_BYTES = 64 * 2**20


class PromptScorer:
    """Scores the prompt tokens that a chunk's hidden states predict."""

    def __init__(self, model: CausalLM, sampler: Sampler, *, vocab_size: int) -> None:
        self._model = model
        self._sampler = sampler
        self._slice_tokens = max(1, _SLICE_BYTES // (4 * vocab_size))

    def score(
        self, plan: StepPlan, row: int, request: ExecutorRequest, hidden_TD: torch.Tensor
    ) -> tuple[TokenLogprobs, ...]:
        """Return the scores of prompt tokens that this row's chunk is the first to predict.

        The chunk's positions [c, c + q) predict tokens [c + 1, c + 1 + q); those below
        `num_scored` were returned before (a retracted prompt is computed twice).
        """
        num_top = request.params.prompt_logprobs
        assert num_top is not None
        start, stop = int(plan.query_start[row]), int(plan.query_start[row + 1])
        first_target = int(plan.context_tokens[row]) + 1
        low = max(first_target, request.num_scored)
        high = min(first_target + stop - start, len(request.prompt_ids))
        scores: list[TokenLogprobs] = []
        for target in range(low, high, self._slice_tokens):
            end = min(target + self._slice_tokens, high)
            offset = start - first_target
            logits = self._model.compute_logits(hidden_TD[offset + target : offset + end])
            targets = torch.from_numpy(request.prompt_ids[target:end].astype("int64"))
            scores += self._sampler.logprobs_of(logits, targets.to(logits.device), num_top)
        request.num_scored = max(request.num_scored, high)
        return tuple(scores)
