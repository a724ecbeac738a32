"""Runs one step plan after another: inputs, forward, logits where it samples, tokens verified.

Owns the sampling table, the block tables and the last token of each slot. It decides nothing: what
runs, where it is stored and when it ends comes with the plan. Called by the event loop's thread.
Legend: R rows, T query tokens, P sampled positions, S slots, D hidden, V vocabulary.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import wait
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from tokenspeed.contracts.sampler import SampleResult
from tokenspeed.contracts.step import StepResult
from tokenspeed.executor.batch import StepBatcher
from tokenspeed.executor.graphs import DecodeGraphs
from tokenspeed.executor.masked import MaskedSampler
from tokenspeed.executor.partition import PartitionBatcher
from tokenspeed.executor.prompt_scores import PromptScorer
from tokenspeed.executor.requests import ExecutorRequest
from tokenspeed.executor.targets import (
    Targets,
    Verified,
    spread_accepted,
    spread_tokens,
    targets_of,
    verify,
)
from tokenspeed.grammar import AnswerMasks
from tokenspeed.ops.sampling import mask_logits as mask_formula
from tokenspeed.sampling.table import SamplingTable
from tokenspeed.scheduler.joined import chunk_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from tokenspeed.contracts.attention import AttentionBackend
    from tokenspeed.contracts.grammar import CompiledGrammar
    from tokenspeed.contracts.model import CausalLM
    from tokenspeed.contracts.sampler import Sampler, TokenLogprobs
    from tokenspeed.contracts.step import StepPlan
    from tokenspeed.executor.graphs import GraphCounts, GraphSettings
    from tokenspeed.executor.masked import MaskLogits
    from tokenspeed.executor.partition import Partition
    from tokenspeed.executor.transfers import TierTransfers
    from tokenspeed.grammar import StepMasks
    from tokenspeed.kv import Arena
    from tokenspeed.sampling import SamplingParams

    Embeddings = tuple[tuple[int, NDArray[np.float32]], ...]
    PromptLogprobs = tuple[tuple[int, tuple[TokenLogprobs, ...]], ...]


@dataclass(frozen=True, slots=True)
class _Launched:
    """A step whose results were not collected yet."""

    step_id: int
    num_rows: int
    targets: Targets | None
    verified: Verified | None
    prompt_logprobs: PromptLogprobs
    reasons: Mapping[int, str] | None = None
    embeddings: Embeddings = ()


class Executor:
    """The execution plane of one rank.

    Args:
        model: built and loaded.
        arena: of the KV cache, laid out for the model's cache groups.
        attention: cache group name -> the backend that the model was built with.
        sampler: turns logits into tokens.
        max_running: number of slots, of all partitions.
        max_context_tokens: longest sequence.
        block_tokens: tokens per logical block.
        vocab_size: tokens outside of it are clamped.
        device: of all tensors.
        poison: see StepBatcher.
        transfers: moves blocks between the tiers; None: there is only the device.
        mask_logits: kernel of `logits.mask`; None: the operator's own formula.
        masks: of the answers that have a grammar; None: made from the vocabulary's size alone.
        share: brings (N,) int64, the last token of each row that sampled, to the other ranks, which
            do not sample; None: there is one rank.
        partition: whose segment of each plan runs here; the model then gives the hidden states of
            all of them. None: attention is not data-parallel.
    """

    def __init__(
        self,
        model: CausalLM,
        *,
        arena: Arena,
        attention: Mapping[str, AttentionBackend],
        sampler: Sampler,
        max_running: int,
        max_context_tokens: int,
        block_tokens: int,
        vocab_size: int,
        device: torch.device,
        poison: bool = False,
        transfers: TierTransfers | None = None,
        mask_logits: MaskLogits | None = None,
        masks: AnswerMasks | None = None,
        share: Callable[[torch.Tensor], object] | None = None,
        partition: Partition | None = None,
    ) -> None:
        self._model = model
        self._share = share
        self._transfers = transfers
        self._plain_sampler = sampler
        self._sampler = MaskedSampler(sampler, mask_logits or mask_formula.signature)
        self._masks = masks or AnswerMasks(vocab_size)
        self._max_token_id = vocab_size - 1
        self._device = device
        batcher = StepBatcher(
            arena,
            attention,
            max_running=max_running if partition is None else partition.slots,
            max_context_tokens=max_context_tokens,
            block_tokens=block_tokens,
            vocab_size=vocab_size,
            device=device,
            poison=poison,
            own_queries=getattr(model, "own_queries", None),
        )
        self._batcher = batcher if partition is None else PartitionBatcher(batcher, partition)
        self._table = SamplingTable(max_running, vocab_size, device)
        self._scorer = PromptScorer(model, sampler, vocab_size=vocab_size)
        self._requests: dict[int, ExecutorRequest] = {}
        self._by_slot: list[ExecutorRequest | None] = [None] * max_running
        # One more, for rows of a graph that a step does not use.
        self._last_tokens_S = torch.zeros(max_running + 1, dtype=torch.int64, device=device)
        self._launched: deque[_Launched] = deque()
        self._graphs: DecodeGraphs | None = None

    def capture_graphs(
        self, settings: GraphSettings, progress: Callable[[int, int], None] | None = None
    ) -> GraphCounts:
        """Capture decode steps; once, before the first plan.

        Args:
            progress: called with (sizes done, sizes in all).
        """
        assert isinstance(self._batcher, StepBatcher), "partitions have no graphs"
        self._graphs = DecodeGraphs(
            self._model,
            self._batcher,
            self._plain_sampler,
            settings,
            last_tokens_S=self._last_tokens_S,
            max_running=len(self._by_slot),
            block_tokens=self._batcher.block_tokens,
            vocab_size=self._max_token_id + 1,
            upload=self._to_device,
        )
        self._graphs.capture(progress)
        return self._graphs.counts

    def add_request(
        self,
        request_id: int,
        prompt_ids: NDArray[np.int32],
        output_ids: NDArray[np.int32],
        params: SamplingParams,
        stop_token_ids: tuple[int, ...],
        grammar: CompiledGrammar | None = None,
    ) -> None:
        """Learn of a request before the first plan that contains it.

        Args:
            output_ids: tokens generated before (resume); sampling state is rebuilt from them.
            stop_token_ids: ids masked until `params.min_tokens` output tokens.
            grammar: the language of `params.grammar`.
        """
        self._masks.prepare(params.thinking)
        clamped_ids = np.clip(prompt_ids, 0, self._max_token_id)
        outputs = np.clip(output_ids, 0, self._max_token_id).tolist()
        self._requests[request_id] = ExecutorRequest(
            clamped_ids, outputs, params, stop_token_ids, grammar
        )

    def remove_request(self, request_id: int) -> None:
        """Forget a request that ended; launched steps may still contain it."""
        self._requests.pop(request_id, None)

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> None:
        """Run one step; its results wait for `collect`. Steps run in the order launched."""
        if self._transfers is not None:
            self._transfers.start(plan)
        self._batcher.apply(plan)
        graphs = self._graphs
        if graphs is not None:
            graphs.follow(plan)
        if plan.num_rows == 0:
            self._launched.append(_Launched(plan.step_id, 0, None, None, ()))
            return
        self._admit(plan)
        targets = targets_of(plan)
        slots = plan.slots[targets.rows_N]
        self._refresh(slots, plan.output_index[targets.rows_N])
        masks = self._masks.start(slots.tolist(), targets.drafts_N)
        try:
            if graphs is not None and graphs.serves(plan):
                return self._replay(plan, targets, masks, graphs)
            inputs = self._batcher.build(plan, self._last_tokens_S)
            hidden_TD = self._model.forward(inputs.token_ids, inputs.context)
            verified = self._sample(plan, targets, hidden_TD, masks) if len(slots) else None
        finally:
            if masks is not None:
                wait([masks])  # until then the answers belong to the thread that fills
        launched = _Launched(
            step_id=plan.step_id,
            num_rows=plan.num_rows,
            targets=targets,
            verified=verified,
            prompt_logprobs=self._score_prompts(plan, hidden_TD),
            reasons=self._failures(targets),
            embeddings=self._embed(plan, hidden_TD),
        )
        self._launched.append(launched)

    def score_spans(self, plan: StepPlan) -> list[tuple[int, int]]:
        """Return which hidden states of a step, that is not launched yet, prompts are scored from.

        Ranks that do not sample have no requests, and make the same logits.
        """
        spans = []
        for row in chunk_rows(plan):
            request = self._requests[int(plan.request_ids[row])]
            if request.params.prompt_logprobs is not None:
                spans += self._scorer.spans(plan, row, request)
        return spans

    def collect(self) -> StepResult:
        """Return the results of the oldest launched step.

        Raises:
            IndexError: nothing is launched.
        """
        launched = self._launched.popleft()
        targets, verified, num_rows = launched.targets, launched.verified, launched.num_rows
        if targets is None or verified is None:
            tokens = np.full(num_rows, -1, dtype=np.int32)
            return StepResult(launched.step_id, tokens, prompt_logprobs=launched.prompt_logprobs)
        return StepResult(
            launched.step_id,
            spread_tokens(targets, verified, num_rows),
            accepted=spread_accepted(targets, verified, num_rows),
            failed=_spread_failed(targets, verified, num_rows, launched.reasons),
            logprobs=_spread_logprobs(targets, verified, num_rows),
            prompt_logprobs=launched.prompt_logprobs,
            reasons=launched.reasons or None,
            embeddings=launched.embeddings,
        )

    def is_device_well(self) -> bool:
        """Say, after a step that failed, whether the device still computes."""
        try:
            return bool((torch.ones(2, device=self._device) + 1).sum().item() == 4)
        except RuntimeError:
            return False

    def _admit(self, plan: StepPlan) -> None:
        for row, slot in plan.admitted.tolist():
            request = self._requests[int(plan.request_ids[row])]
            request.is_fresh = True
            self._by_slot[slot] = request

    def _sample(
        self,
        plan: StepPlan,
        targets: Targets,
        hidden_TD: torch.Tensor,
        pending: Future[StepMasks | None] | None,
    ) -> Verified:
        if len(targets.places_P) < plan.num_tokens:
            hidden_TD = hidden_TD.index_select(0, self._upload(targets.places_P))
        return self._sample_logits(plan, targets, self._model.compute_logits(hidden_TD), pending)

    def _replay(
        self,
        plan: StepPlan,
        targets: Targets,
        pending: Future[StepMasks | None] | None,
        graphs: DecodeGraphs,
    ) -> None:
        """Run a step of one token a row as a graph; only special rows are sampled outside."""
        logits_RV = graphs.forward(plan)
        results_R = None
        if pending is None and self._table.are_plain(plan.slots):
            results_R = graphs.sample(plan, is_drawn=not self._table.are_greedy(plan.slots))
        if results_R is None:
            verified = self._sample_logits(plan, targets, logits_RV, pending)
        else:
            sample = SampleResult(results_R.clamp(min=0), results_R < 0)
            verified = verify(targets, sample)
            self._record(plan.slots, plan.output_index, verified)
        self._launched.append(
            _Launched(
                step_id=plan.step_id,
                num_rows=plan.num_rows,
                targets=targets,
                verified=verified,
                prompt_logprobs=(),
                reasons=self._failures(targets),
            )
        )

    def _sample_logits(
        self,
        plan: StepPlan,
        targets: Targets,
        logits_PV: torch.Tensor,
        pending: Future[StepMasks | None] | None,
    ) -> Verified:
        slots, output_index = plan.slots[targets.rows_N], plan.output_index[targets.rows_N]
        masks = pending.result() if pending is not None else None
        batch = self._table.batch(
            targets.slots_P,
            targets.output_index_P,
            targets.ahead(),
            ending=masks.positions_K[masks.ending_K].tolist() if masks is not None else (),
        )
        verified = verify(targets, self._sampler.sample(logits_PV, batch, masks))
        last_N = self._upload(np.array([new[-1] for new in verified.tokens_N], dtype=np.int64))
        if self._share is not None:
            self._share(last_N)
        self._last_tokens_S[self._upload(slots.astype(np.int64))] = last_N
        self._record(slots, output_index, verified)
        return verified

    def _to_device(self, *arrays: NDArray[Any]) -> tuple[torch.Tensor, ...]:
        return tuple(torch.from_numpy(array).to(self._device) for array in arrays)

    def _upload(self, values: NDArray[np.int64]) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)

    def _refresh(self, slots: NDArray[np.int32], output_index: NDArray[np.int32]) -> None:
        """Rebuild the sampling state of requests that sample in their slot for the first time.

        The plan's output index says how many tokens count: one sampled ahead may have been dropped.
        """
        for slot, index in zip(slots.tolist(), output_index.tolist(), strict=True):
            request = self._by_slot[slot]
            assert request is not None, "a row of a slot that no plan admitted"
            if request.is_fresh:
                request.is_fresh = False
                self._table.admit(
                    slot,
                    request.params,
                    request.stop_token_ids,
                    request.prompt_ids,
                    np.asarray(request.output_ids[:index], dtype=np.int32),
                )
                if self._graphs is not None:
                    self._graphs.admit(slot, self._table.parameters(slot))
                guide = request.params.grammar
                self._masks.admit(
                    slot,
                    request.grammar,
                    thinking=request.params.thinking,
                    after=guide.after if guide is not None else (),
                    stop_ids=request.stop_token_ids,
                    output_ids=request.output_ids[:index],
                )

    def _record(
        self, slots: NDArray[np.int32], output_index: NDArray[np.int32], verified: Verified
    ) -> None:
        for slot, index, tokens, has_failed in zip(
            slots.tolist(),
            output_index.tolist(),
            verified.tokens_N,
            verified.failed_N.tolist(),
            strict=True,
        ):
            request = self._by_slot[slot]
            assert request is not None
            request.record(index, tokens)
            self._table.append(slot, tokens)
            if not has_failed:
                self._masks.accept(slot, tokens)

    def _request_of(self, plan: StepPlan, row: int) -> ExecutorRequest:
        request = self._by_slot[int(plan.slots[row])]
        assert request is not None, "a row of a slot that no plan admitted"
        return request

    def _failures(self, targets: Targets) -> dict[int, str]:
        """Return the rows whose answers cannot go on, and why."""
        if self._masks.is_empty:
            return {}
        slots = targets.slots_P[targets.first_N].tolist()
        pairs = zip(targets.rows_N.tolist(), map(self._masks.failure, slots), strict=True)
        return {row: reason for row, reason in pairs if reason}

    def _embed(self, plan: StepPlan, hidden_TD: torch.Tensor) -> Embeddings:
        """Return the hidden states behind the prompts that end in this step and ask for them."""
        rows = [
            row
            for row in chunk_rows(plan)
            if plan.output_index[row] >= 0 and self._request_of(plan, row).params.embeds
        ]
        if not rows:
            return ()
        last = plan.query_start[1:][rows].astype(np.int64) - 1
        states_ND = hidden_TD.index_select(0, self._upload(last)).float().cpu().numpy()
        return tuple(zip(rows, states_ND, strict=True))

    def _score_prompts(self, plan: StepPlan, hidden_TD: torch.Tensor) -> PromptLogprobs:
        scores = []
        for row in chunk_rows(plan):
            request = self._request_of(plan, row)
            if request.params.prompt_logprobs is not None:
                entry = self._scorer.score(plan, row, request, hidden_TD)
                scores += [(row, entry)] if entry else []
        return tuple(scores)


def _spread_failed(
    targets: Targets, verified: Verified, num_rows: int, reasons: Mapping[int, str] | None
) -> NDArray[np.bool_] | None:
    if not verified.failed_N.any() and not reasons:
        return None
    failed = np.zeros(num_rows, dtype=np.bool_)
    failed[targets.rows_N] = verified.failed_N
    failed[list(reasons or ())] = True
    return failed


def _spread_logprobs(
    targets: Targets, verified: Verified, num_rows: int
) -> tuple[tuple[TokenLogprobs, ...] | None, ...] | None:
    if verified.logprobs_N is None:
        return None
    spread: list[tuple[TokenLogprobs, ...] | None] = [None] * num_rows
    for row, entries in zip(targets.rows_N.tolist(), verified.logprobs_N, strict=True):
        spread[row] = entries
    return tuple(spread)
