"""The publishing half of the loop: committed tokens become deltas, one message a client and step.

Also forgets requests that ended, in the executor no earlier than the last step that holds them.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import msgspec

from tokenspeed.engine.messages import CacheReport, Delta, Refused, TokensOut
from tokenspeed.scheduler import FINISH_REASONS, MATCH_ENDS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.sampler import TokenLogprobs
    from tokenspeed.contracts.step import StepPlan, StepResult
    from tokenspeed.engine.activity import Activity
    from tokenspeed.engine.cache_tally import CacheTally
    from tokenspeed.engine.channel import Client, EngineChannel
    from tokenspeed.engine.engine import Engine
    from tokenspeed.engine.requests import LiveRequest, RequestTable
    from tokenspeed.engine.suspects import SuspectGate
    from tokenspeed.scheduler import CommitResult


class Publisher:
    """Sends deltas to the clients. Thread: the engine's only."""

    def __init__(
        self,
        engine: Engine,
        channel: EngineChannel,
        requests: RequestTable,
        gate: SuspectGate,
        *,
        epoch: int,
        activity: Activity,
        tally: CacheTally,
    ) -> None:
        self._engine = engine
        self._channel = channel
        self._requests = requests
        self._gate = gate
        self._epoch = epoch
        self._activity = activity
        self._tally = tally
        self._gone: list[Client] = []
        self._again: list[LiveRequest] = []
        self._retiring: deque[tuple[int, int]] = deque()
        self._last_step_id = 0
        self._committed_step_id = 0

    def publish(
        self,
        plan: StepPlan,
        committed: CommitResult,
        result: StepResult,
        *,
        last_step_id: int,
        reason_failed: str,
        tries_again: bool = False,
    ) -> None:
        """Send what a step made final.

        Args:
            last_step_id: newest step that is launched; it may still hold rows of ended requests.
            reason_failed: why rows with reason "error" failed, for the client.
            tries_again: nobody knows which of the rows failed: those that were in no fatal step
                before are not told, see `take_again`.
        """
        self._last_step_id = last_step_id
        self._committed_step_id = plan.step_id
        for row, scored in result.prompt_logprobs:
            request = self._requests.by_key(int(plan.request_ids[row]))
            if request is not None:
                request.prompt_logprobs.extend(scored)
        for row, state in result.embeddings:
            request = self._requests.by_key(int(plan.request_ids[row]))
            if request is not None:
                request.embedding = state.astype("<f4", copy=False).tobytes()
        num_output = self._send(
            committed,
            result.logprobs,
            reason_failed,
            _drafts_of(plan, result),
            result.reasons or {},
            tries_again=tries_again,
        )
        self._activity.note_step(computed_tokens=plan.num_tokens, output_tokens=num_output)
        self._retire()

    def take_again(self) -> list[LiveRequest]:
        """Return the requests that are to be tried again; they have left the tables."""
        again, self._again = self._again, []
        return again

    def take_ended(self) -> list[Client]:
        """Send what ended outside a commit; return the clients that turned out to be gone."""
        ended = self._engine.scheduler.take_ended()
        if len(ended.request_ids):
            self._send(ended, None, "", {}, {})
            self._retire()
        gone, self._gone = self._gone, []
        return gone

    def _send(
        self,
        committed: CommitResult,
        logprobs: tuple[tuple[TokenLogprobs, ...] | None, ...] | None,
        reason_failed: str,
        drafts: Mapping[int, tuple[int, int]],
        reasons: Mapping[int, str],
        *,
        tries_again: bool = False,
    ) -> int:
        """Send deltas; return how many output tokens are in them."""
        num_output = 0
        outgoing: dict[Client, list[Delta]] = {}
        reports = _reports_of(committed)
        for index, (key, tokens, reason, cached, row) in enumerate(committed.entries()):
            request = self._requests.by_key(key)
            if request is None:
                continue
            name = FINISH_REASONS[reason]
            if name == "timeout" and self._has_waited_too_long(request):
                self._refuse_late(request)
                continue
            if name == "error" and request.refusal:
                self._refuse(request, request.refusal)
                continue
            if tries_again and self._may_go_on(request, name):
                self._end(request)
                self._again.append(request)
                continue
            scored = logprobs[row] if logprobs is not None and row >= 0 else None
            delta = self._delta(request, tokens, name, cached, scored)
            if index in reports:
                delta = self._with_report(request, delta, reports[index])
            if row in drafts:
                delta = msgspec.structs.replace(delta, drafts=drafts[row])
            if delta.finish_reason == "error":
                delta = _with_error(delta, reasons.get(row, reason_failed))
            num_output += len(delta.tokens)
            outgoing.setdefault(request.client, []).append(delta)
            if reason:
                self._end(request)
            else:
                self._gate.note_progress(request.request_id, request.num_outputs)
        for client, deltas in outgoing.items():
            if not self._channel.send(client, TokensOut(tuple(deltas), self._epoch)):
                self._gone.append(client)
        return num_output

    def _delta(
        self,
        request: LiveRequest,
        tokens: tuple[int, ...],
        reason: str,
        cached: int,
        scored: tuple[TokenLogprobs, ...] | None,
    ) -> Delta:
        if tokens and cached >= 0:
            request.cached_tokens = cached
            if not request.is_resumed:
                self._activity.note_first_token(time.monotonic() - request.arrived_s)
        request.outputs.extend(tokens)
        prompt_logprobs = None
        if tokens and request.prompt_logprobs:
            prompt_logprobs = tuple(request.prompt_logprobs)
            request.prompt_logprobs.clear()
        return Delta(
            request_id=request.request_id,
            tokens=tokens,
            logprobs=scored[: len(tokens)] or None if scored is not None else None,
            prompt_logprobs=prompt_logprobs,
            cached_tokens=cached,
            embedding=request.embedding if tokens else None,
            finish_reason=reason or None,
        )

    def _with_report(self, request: LiveRequest, delta: Delta, report: CacheReport) -> Delta:
        """Add what the cache did for the prompt; count it once, not again after a crash."""
        request.cache = report
        if not request.is_resumed:
            self._tally.add(
                report,
                request.session,
                parent=request.parent,
                root=request.root,
                tenant=request.tenant,
            )
        return msgspec.structs.replace(delta, cache=report)

    def _may_go_on(self, request: LiveRequest, reason: str) -> bool:
        """Say whether a request of a step that failed is tried again."""
        is_known = self._gate.is_suspect(request.request_id)
        return reason == "error" and request.message is not None and not is_known

    def _has_waited_too_long(self, request: LiveRequest) -> bool:
        """Say whether a timeout is that of the queue and not the request's own."""
        is_over = request.deadline_us and time.monotonic_ns() // 1000 >= request.deadline_us
        return not is_over and request.cached_tokens is None

    def _refuse_late(self, request: LiveRequest) -> None:
        """Tell a client that its request has waited too long for its turn."""
        waited_s = time.monotonic() - request.arrived_s
        num_others = self._engine.scheduler.stats()["waiting"]
        retry_after_s = self._activity.drain_s(num_others + 1, waited_s=waited_s)
        text = (
            f"the request waited {waited_s:.1f} s in the queue and did not get its turn; "
            f"{num_others} {'other waits' if num_others == 1 else 'others wait'}; send it again in "
            f"{retry_after_s} s"
        )
        self._refuse(request, text, retry_after_s=retry_after_s)

    def _refuse(self, request: LiveRequest, text: str, *, retry_after_s: int | None = None) -> None:
        """End a request with a CapacityError at its client."""
        message = Refused(
            request_id=request.request_id,
            epoch=self._epoch,
            kind="CapacityError",
            message=text,
            retry_after_s=retry_after_s,
        )
        if not self._channel.send(request.client, message):
            self._gone.append(request.client)
        self._end(request)

    def _end(self, request: LiveRequest) -> None:
        self._requests.remove(request)
        self._activity.note_end()
        self._gate.note_end(request.request_id)
        if self._engine.drafting is not None:
            self._engine.drafting.forget(request.key)
        self._engine.policy.turn_ended(request.session_number, time.monotonic_ns() // 1000)
        self._retiring.append((self._last_step_id, request.key))

    def _retire(self) -> None:
        """Let the executor forget requests whose last step is committed."""
        while self._retiring and self._retiring[0][0] <= self._committed_step_id:
            self._engine.executor.remove_request(self._retiring.popleft()[1])


def _drafts_of(plan: StepPlan, result: StepResult) -> dict[int, tuple[int, int]]:
    """Return (verified, right) drafts of the rows that had any."""
    if result.accepted is None:
        return {}
    pairs = zip(plan.num_drafts.tolist(), result.accepted.tolist(), strict=True)
    return {row: pair for row, pair in enumerate(pairs) if pair[0]}


def _reports_of(committed: CommitResult) -> dict[int, CacheReport]:
    """Return the cache reports that came with first tokens, by entry."""
    if not len(committed.reports):
        return {}
    return {
        entry: CacheReport(cached, created, recomputed, end, MATCH_ENDS[reason])
        for entry, cached, created, recomputed, end, reason in committed.reports.tolist()
    }


def _with_error(delta: Delta, reason: str) -> Delta:
    return Delta(
        request_id=delta.request_id,
        finish_reason="error",
        error=f"request {delta.request_id} failed: {reason}; other requests go on. Send it again, "
        "and if it fails again see the engine's log",
    )
