"""Rank 0's executor: sends each plan to the other ranks, then carries it out like them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tokenspeed.engine.ranks.plan_frames import JoinedEncoder
from tokenspeed.scheduler import PlanEncoder

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tokenspeed.contracts.grammar import CompiledGrammar
    from tokenspeed.contracts.step import StepResult
    from tokenspeed.engine.ranks.group import RankGroup
    from tokenspeed.executor import Executor
    from tokenspeed.sampling.params import SamplingParams


class LeadingExecutor:
    """A StepExecutor over several ranks.

    A step that fails on any of them raises RankFailure, and so does every one after it: the ranks
    are no longer at the same place.

    Args:
        check: raises if a group of this rank broke since the last call; the step's event passed.
        num_partitions: of data-parallel attention; with several, plans are joined ones.
    """

    def __init__(
        self,
        executor: Executor,
        group: RankGroup,
        check: Callable[[], None],
        *,
        num_partitions: int = 1,
    ) -> None:
        self._executor = executor
        self._check = check
        self._group = group
        self._num_collected = 0
        self._encoder: Any = PlanEncoder() if num_partitions == 1 else JoinedEncoder(num_partitions)

    def add_request(
        self,
        request_id: int,
        prompt_ids: NDArray[np.int32],
        output_ids: NDArray[np.int32],
        params: SamplingParams,
        stop_token_ids: tuple[int, ...],
        grammar: CompiledGrammar | None = None,
    ) -> None:
        """Learn of a request; only this rank samples, so the others need not."""
        self._executor.add_request(
            request_id, prompt_ids, output_ids, params, stop_token_ids, grammar
        )

    def remove_request(self, request_id: int) -> None:
        """Forget a request."""
        self._executor.remove_request(request_id)

    def launch(self, plan: Any) -> None:
        """Start a step on all ranks.

        Args:
            plan: the scheduler's own StepPlan, or a JoinedPlan of several of them.
        Raises:
            RankFailure: a rank is gone, or the step failed.
        """
        self._group.check()
        self._group.is_in_step = True  # stays so after an error: the workers wait for this rank
        try:
            spans = np.array(self._executor.score_spans(plan), dtype=np.int32).reshape(-1)
            self._group.sender.send(self._encoder.encode(plan, spans))
            self._executor.launch(plan)
        except (Exception, SystemExit) as error:
            raise self._group.cause_of(error) from error
        self._group.progress.steps += 1
        self._group.is_in_step = False

    def collect(self) -> StepResult:
        """Wait for the oldest launched step and return its result.

        Raises:
            RankFailure: a group of ranks broke in it, this rank's or another.
        """
        try:
            result = self._executor.collect()
            self._check()
            self._num_collected += 1
            self._group.wait_well(self._num_collected)
            return result
        except (Exception, SystemExit) as error:
            self._group.is_in_step = True
            raise self._group.cause_of(error) from error

    def is_device_well(self) -> bool:
        """Say, after a step that failed, whether the device still computes."""
        return self._executor.is_device_well()
