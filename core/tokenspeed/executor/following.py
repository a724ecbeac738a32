"""The execution plane of a rank that does not sample: the same steps, the tokens from rank 0.

It knows no requests: plans name slots, and the last token of a slot comes by one broadcast a step.
Legend: T query tokens, N rows that sample, S slots, D hidden.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch

from tokenspeed.executor.targets import targets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenspeed.contracts.model import CausalLM
    from tokenspeed.contracts.step import StepPlan
    from tokenspeed.executor.batch import StepBatcher
    from tokenspeed.executor.host_link import HostLink
    from tokenspeed.executor.partition import PartitionBatcher
    from tokenspeed.executor.transfers import TierTransfers


class FollowingExecutor:
    """Carries out the plans that rank 0 carries out, in the same order.

    Args:
        batcher: of this rank's arena.
        max_running: number of slots, of all partitions.
        transfers: moves this rank's part of blocks between the tiers; None: there is no tier.
        share: returns rank 0's (N,) int64; what it is given says shape and device only.
    """

    def __init__(
        self,
        model: CausalLM,
        batcher: StepBatcher | PartitionBatcher,
        *,
        max_running: int,
        link: HostLink,
        share: Callable[[torch.Tensor], torch.Tensor],
        transfers: TierTransfers | None = None,
    ) -> None:
        self._model = model
        self._batcher = batcher
        self._link = link
        self._share = share
        self._transfers = transfers
        self._last_tokens_S = torch.zeros(max_running, dtype=torch.int64, device=link.device)

    @torch.inference_mode()
    def run(self, plan: StepPlan, score_spans: Sequence[int]) -> None:
        """Run one step.

        Args:
            score_spans: start, stop, start, stop ... of the hidden states that prompts are scored
                from (`Executor.score_spans`).
        """
        self._link.begin()
        if self._transfers is not None:
            self._transfers.start(plan)
        self._batcher.apply(plan)
        if plan.num_rows:
            self._run(plan, score_spans)
        self._link.end()

    def _run(self, plan: StepPlan, score_spans: Sequence[int]) -> None:
        inputs = self._batcher.build(plan, self._last_tokens_S)
        hidden_TD = self._model.forward(inputs.token_ids, inputs.context)
        self._sample(plan, hidden_TD)
        for start, stop in zip(score_spans[::2], score_spans[1::2], strict=True):
            self._model.compute_logits(hidden_TD[start:stop])

    def _sample(self, plan: StepPlan, hidden_TD: torch.Tensor) -> None:
        """Take part in the logits, and take the tokens that rank 0 sampled from them."""
        targets = targets_of(plan)
        if len(targets.rows_N) == 0:
            return
        places_P, slots_N = self._link.upload(
            targets.places_P, plan.slots[targets.rows_N].astype(np.int64)
        )
        if len(targets.places_P) < plan.num_tokens:
            hidden_TD = hidden_TD.index_select(0, places_P)
        self._model.compute_logits(hidden_TD)
        self._last_tokens_S.index_copy_(0, slots_N, self._share(torch.empty_like(slots_N)))
