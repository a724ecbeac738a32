"""Runs one step plan after another: inputs, forward, logits where it samples, tokens.

`launch` gives work to the device and does not wait for it, so that a step is under way before the
results of the one before are read; `collect` reads them. What is booked on the host of a step's
tokens is booked when they are read: at the latest then, and before masks are made that follow from
them. Owns the sampling table, the block tables and the last token of each slot. It decides nothing:
what runs, where it is stored and when it ends comes with the plan. Called by the event loop's
thread. Legend: R rows, T query tokens, N rows that sample, P sampled positions, S slots, D hidden,
V vocabulary.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import wait
from typing import TYPE_CHECKING

import numpy as np
import torch

from tokenspeed.executor.batch import StepBatcher
from tokenspeed.executor.graphs import DecodeGraphs
from tokenspeed.executor.launched import LaunchedStep, SampledOnDevice
from tokenspeed.executor.masked import MaskedSampler
from tokenspeed.executor.partition import PartitionBatcher
from tokenspeed.executor.piecewise import PiecewiseForward
from tokenspeed.executor.prompt_scores import PromptScorer
from tokenspeed.executor.requests import ExecutorRequest
from tokenspeed.executor.targets import Targets, Verified, targets_of
from tokenspeed.grammar import AnswerMasks
from tokenspeed.ops.sampling import mask_logits as mask_formula
from tokenspeed.sampling.table import SamplingTable
from tokenspeed.scheduler.joined import chunk_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from tokenspeed.contracts.attention import AttentionBackend
    from tokenspeed.contracts.device import DeviceGraph
    from tokenspeed.contracts.grammar import CompiledGrammar
    from tokenspeed.contracts.model import CausalLM, ForwardContext
    from tokenspeed.contracts.sampler import Sampler, Scores
    from tokenspeed.contracts.step import StepPlan, StepResult
    from tokenspeed.executor.graphs import GraphCounts, GraphSettings
    from tokenspeed.executor.host_link import HostLink
    from tokenspeed.executor.masked import MaskLogits
    from tokenspeed.executor.partition import Partition
    from tokenspeed.executor.program import ProgramRunner
    from tokenspeed.executor.transfers import TierTransfers
    from tokenspeed.grammar import StepMasks
    from tokenspeed.kv import Arena
    from tokenspeed.sampling import SamplingParams

    PendingMasks = Future[StepMasks | None]
    Forward = Callable[[torch.Tensor, ForwardContext], torch.Tensor]


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
        link: to the device of all tensors.
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
        link: HostLink,
        poison: bool = False,
        transfers: TierTransfers | None = None,
        mask_logits: MaskLogits | None = None,
        masks: AnswerMasks | None = None,
        share: Callable[[torch.Tensor], object] | None = None,
        partition: Partition | None = None,
    ) -> None:
        self._model = model
        self._forward: Forward | None = None  # in pieces; None: the model's own
        self._share = share
        self._transfers = transfers
        self._link = link
        self._plain_sampler = sampler
        self._sampler = MaskedSampler(sampler, mask_logits or mask_formula.signature, link)
        self._masks = masks or AnswerMasks(vocab_size)
        self._max_token_id = vocab_size - 1
        batcher = StepBatcher(
            arena,
            attention,
            max_running=max_running if partition is None else partition.slots,
            max_context_tokens=max_context_tokens,
            block_tokens=block_tokens,
            vocab_size=vocab_size,
            link=link,
            poison=poison,
            own_queries=getattr(model, "own_queries", None),
        )
        self._batcher = batcher if partition is None else PartitionBatcher(batcher, partition)
        self._table = SamplingTable(max_running, vocab_size, link)
        self._scorer = PromptScorer(model, sampler, vocab_size=vocab_size, link=link)
        self._requests: dict[int, ExecutorRequest] = {}
        self._by_slot: list[ExecutorRequest | None] = [None] * max_running
        # One more, for rows of a graph that a step does not use.
        self._last_tokens_S = torch.zeros(max_running + 1, dtype=torch.int64, device=link.device)
        self._launched: deque[LaunchedStep] = deque()
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
            upload=self._link.upload,
        )
        self._graphs.capture(progress)
        return self._graphs.counts

    def capture_pieces(
        self,
        runner: ProgramRunner,
        *,
        sizes: Sequence[int],
        max_bytes: int,
        capture: Callable[[Callable[[], None]], DeviceGraph],
    ) -> GraphCounts:
        """Replay other steps in pieces, captured as they come; after `capture_graphs`.

        Args:
            runner, sizes, max_bytes, capture: see PiecewiseForward.
        """
        self._forward = forward = PiecewiseForward(
            runner, self._model.forward, sizes=sizes, max_bytes=max_bytes, capture=capture
        )
        return forward.counts

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
        """Start one step; its results wait for `collect`. Steps run in the order launched."""
        if len(self._launched) >= self._link.num_steps - 1:
            self._settle()  # the ring comes round: what was downloaded there must be read
        self._link.begin()
        if self._transfers is not None:
            self._transfers.start(plan)
        self._batcher.apply(plan)
        if self._graphs is not None:
            self._graphs.follow(plan)
        step = LaunchedStep(plan.step_id, plan.num_rows)
        if plan.num_rows:
            self._run(plan, step)
        step.event = self._link.end()
        self._launched.append(step)

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
        """Wait for the oldest launched step and return its results.

        Raises:
            IndexError: nothing is launched.
            Exception: what reading them raised.
        """
        step = self._launched.popleft()
        if not step.is_settled:
            self._settle_step(step)
        if step.error is not None:
            raise step.error
        assert step.result is not None
        return step.result

    def is_device_well(self) -> bool:
        """Say, after a step that failed, whether the device still computes."""
        try:
            return bool((torch.ones(2, device=self._link.device) + 1).sum().item() == 4)
        except RuntimeError:
            return False

    def _admit(self, plan: StepPlan) -> None:
        for row, slot in plan.admitted.tolist():
            request = self._requests[int(plan.request_ids[row])]
            request.is_fresh = True
            self._by_slot[slot] = request

    def _run(self, plan: StepPlan, step: LaunchedStep) -> None:
        """Give the device all of a step that has rows, and note what comes of it."""
        self._admit(plan)
        targets = targets_of(plan)
        slots = plan.slots[targets.rows_N]
        self._refresh(slots, plan.output_index[targets.rows_N])
        graphs = self._graphs if self._graphs is not None and self._graphs.serves(plan) else None
        inputs = self._batcher.build(plan, self._last_tokens_S) if graphs is None else None
        is_masked = self._masks.concern(slots.tolist())
        # Where the steps before are done already, masks are made while this one is launched.
        pending = self._start_masks(targets) if is_masked and self._settle_arrived() else None
        try:
            if graphs is not None:
                logits_RV = graphs.forward(plan)
            else:
                assert inputs is not None
                forward = self._forward or self._model.forward
                hidden_TD = forward(inputs.token_ids, inputs.context)
            if is_masked and pending is None:
                self._settle()  # while the device computes
                pending = self._start_masks(targets)
            if graphs is not None:
                step.sampled = self._sample_replayed(plan, targets, logits_RV, pending, graphs)
            elif len(slots):
                logits_PV = self._logits_of(plan, targets, hidden_TD)
                step.sampled = self._sample(plan, targets, logits_PV, pending)
        finally:
            if pending is not None:
                wait([pending])  # until then the answers belong to the thread that fills
        if graphs is None:  # whose steps have no prompts
            step.prompt_scores = self._score_prompts(plan, hidden_TD)
            step.embedded = self._embed(plan, hidden_TD)

    def _logits_of(self, plan: StepPlan, targets: Targets, hidden_TD: torch.Tensor) -> torch.Tensor:
        """Return (P, V)."""
        if len(targets.places_P) < plan.num_tokens:
            hidden_TD = hidden_TD.index_select(0, *self._link.upload(targets.places_P))
        return self._model.compute_logits(hidden_TD)

    def _sample_replayed(
        self,
        plan: StepPlan,
        targets: Targets,
        logits_RV: torch.Tensor,
        pending: PendingMasks | None,
        graphs: DecodeGraphs,
    ) -> SampledOnDevice:
        """Sample a graph's logits as a graph too, unless a row asks for what that does not do."""
        if pending is not None or not self._table.are_plain(plan.slots):
            return self._sample(plan, targets, logits_RV, pending)
        tokens_R = graphs.sample(plan, is_drawn=not self._table.are_greedy(plan.slots))
        if tokens_R is None:
            return self._sample(plan, targets, logits_RV, pending)
        return self._sent(plan, targets, tokens_R, None)

    def _sample(
        self,
        plan: StepPlan,
        targets: Targets,
        logits_PV: torch.Tensor,
        pending: PendingMasks | None,
    ) -> SampledOnDevice:
        """Sample, keep each row's token for its next step, and send all to the host."""
        first_N, slots_N = self._link.upload(
            targets.first_N, plan.slots[targets.rows_N].astype(np.int64)
        )
        masks = pending.result() if pending is not None else None
        batch = self._table.batch(
            targets.slots_P,
            targets.output_index_P,
            targets.ahead(),
            ending=masks.positions_K[masks.ending_K].tolist() if masks is not None else (),
        )
        sample = self._sampler.sample(logits_PV, batch, masks)
        tokens_P = sample.tokens_R.long()
        # Of a row with drafts any will do: its next plan is made when the host knows its tokens.
        last_N = tokens_P.index_select(0, first_N) if targets.has_drafts else tokens_P
        if self._share is not None:
            self._share(last_N)
        self._last_tokens_S.index_copy_(0, slots_N, last_N)
        self._count(targets, last_N)
        return self._sent(plan, targets, tokens_P.masked_fill(sample.failed_R, -1), sample.logprobs)

    def _sent(
        self, plan: StepPlan, targets: Targets, tokens_P: torch.Tensor, logprobs: Scores | None
    ) -> SampledOnDevice:
        """Send tokens, -1 where a position failed, to the host."""
        by_slot = self._by_slot
        requests_N = [by_slot[slot] for slot in plan.slots[targets.rows_N].tolist()]
        return SampledOnDevice(
            targets,
            requests_N,
            self._link.download(tokens_P),
            logprobs,
        )

    def _count(self, targets: Targets, last_N: torch.Tensor) -> None:
        """Count the tokens of rows without drafts, as which no other can be final."""
        slots_N = targets.slots_P[targets.first_N]
        if not targets.has_drafts:
            self._table.append_on_device(slots_N, last_N)
            return
        (rows,) = np.nonzero([not drafts for drafts in targets.drafts_N])
        self._table.append_on_device(
            slots_N[rows], last_N.index_select(0, *self._link.upload(rows))
        )

    def _start_masks(self, targets: Targets) -> PendingMasks | None:
        return self._masks.start(targets.slots_P[targets.first_N].tolist(), targets.drafts_N)

    def _settle_arrived(self) -> bool:
        """Settle the launched steps if that takes no wait; say whether it was so."""
        has_arrived = all(step.is_settled or step.event.query() for step in self._launched)
        if has_arrived:
            self._settle()
        return has_arrived

    def _settle(self) -> None:
        """Book the results of all launched steps on the host; waits for them."""
        for step in self._launched:
            if not step.is_settled:
                self._settle_step(step)

    def _settle_step(self, step: LaunchedStep) -> None:
        """Book one step's; what that raises is the step's own and comes with `collect`."""
        try:
            step.event.synchronize()
            if step.sampled is None:
                step.result = step.result_of(None, {})
                return
            verified = step.sampled.verified()
            self._record(step.sampled, verified)
            step.result = step.result_of(verified, self._failures(step.sampled))
        except (Exception, SystemExit) as error:  # the latter of a plugin: it ends no process
            step.error = error

    def _refresh(self, slots: NDArray[np.int32], output_index: NDArray[np.int32]) -> None:
        """Rebuild the sampling state of requests that sample in their slot for the first time.

        The plan's output index says how many tokens count: one sampled ahead may have been dropped.
        """
        for slot, index in zip(slots.tolist(), output_index.tolist(), strict=True):
            request = self._by_slot[slot]
            assert request is not None, "a row of a slot that no plan admitted"
            if request.is_fresh:
                assert len(request.output_ids) >= index, "a slot was given while a step was out"
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

    def _record(self, sampled: SampledOnDevice, verified: Verified) -> None:
        targets, requests_N = sampled.targets, sampled.requests_N
        output_index_N = targets.output_index_P[targets.first_N].tolist()
        for request, index, tokens in zip(
            requests_N, output_index_N, verified.tokens_N, strict=True
        ):
            request.record(index, tokens)
        if self._masks.is_empty and not targets.has_drafts:
            return  # no slot has anything else to follow
        for request, slot, drafts, tokens, has_failed in zip(
            requests_N,
            targets.slots_P[targets.first_N].tolist(),
            targets.drafts_N,
            verified.tokens_N,
            verified.failed_N.tolist(),
            strict=True,
        ):
            if not self._owns(request, slot):
                continue
            if drafts:
                self._table.append(slot, tokens)
            if not has_failed:
                self._masks.accept(slot, tokens)

    def _owns(self, request: ExecutorRequest, slot: int) -> bool:
        """Say whether a slot holds the state of a request, of this stay in it."""
        return self._by_slot[slot] is request and not request.is_fresh

    def _request_of(self, plan: StepPlan, row: int) -> ExecutorRequest:
        request = self._by_slot[int(plan.slots[row])]
        assert request is not None, "a row of a slot that no plan admitted"
        return request

    def _failures(self, sampled: SampledOnDevice) -> dict[int, str]:
        """Return the rows whose answers cannot go on, and why."""
        if self._masks.is_empty:
            return {}
        targets = sampled.targets
        slots = targets.slots_P[targets.first_N].tolist()
        rows = zip(targets.rows_N.tolist(), sampled.requests_N, slots, strict=True)
        reasons = {
            row: self._masks.failure(slot) if self._owns(request, slot) else ""
            for row, request, slot in rows
        }
        return {row: reason for row, reason in reasons.items() if reason}

    def _embed(
        self, plan: StepPlan, hidden_TD: torch.Tensor
    ) -> tuple[Sequence[int], torch.Tensor] | None:
        """Send the hidden states behind the prompts that end in this step and ask for them."""
        rows = [
            row
            for row in chunk_rows(plan)
            if plan.output_index[row] >= 0 and self._request_of(plan, row).params.embeds
        ]
        if not rows:
            return None
        (last_E,) = self._link.upload(plan.query_start[1:][rows].astype(np.int64) - 1)
        return rows, self._link.download(hidden_TD.index_select(0, last_E).float())

    def _score_prompts(
        self, plan: StepPlan, hidden_TD: torch.Tensor
    ) -> list[tuple[int, list[Scores]]]:
        scores = []
        for row in chunk_rows(plan):
            request = self._request_of(plan, row)
            if request.params.prompt_logprobs is not None:
                parts = self._scorer.score(plan, row, request, hidden_TD)
                scores += [(row, parts)] if parts else []
        return scores
