"""The one loop of an engine: receive, plan, run, commit, publish.

Runs in one thread and decides nothing: the scheduler plans, the executor computes. An exception in
one request's path ends that request. After an exception in a step its requests go on one at a time
from their last tokens, and the one that fails again without the others is ended with "error". A
device that fails too, or too many failed steps in a row, end the engine, which is then restarted.
"""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenspeed.contracts.step import StepResult
from tokenspeed.engine.activity import Activity
from tokenspeed.engine.blame import Blame
from tokenspeed.engine.cache_tally import CacheTally
from tokenspeed.engine.intake import Intake, now_us
from tokenspeed.engine.messages import EngineStats
from tokenspeed.engine.meter import StepMeter
from tokenspeed.engine.picture import spelled_out
from tokenspeed.engine.publisher import Publisher
from tokenspeed.engine.ranks.failure import RankFailure
from tokenspeed.engine.requests import RequestTable
from tokenspeed.engine.snapshot import Snapshot
from tokenspeed.engine.suspects import SuspectGate
from tokenspeed.errors import EngineError
from tokenspeed.log import LOGGER

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenspeed.contracts.step import StepPlan
    from tokenspeed.engine.channel import EngineChannel
    from tokenspeed.engine.engine import Engine
    from tokenspeed.engine.flight_record import FlightRecord
    from tokenspeed.engine.kv_publisher import KvPublisher
    from tokenspeed.engine.replicas.feed import KvFeed

IDLE_WAIT_MS = 10_000
"""Longest sleep without a deadline; a message wakes the engine at once."""

STALLED_WAIT_MS = 1
"""Sleep when there are requests and none can run: no burning of a core on what only time solves."""

TIER_FAILURES = (
    "tier_loads_failed",
    "host_writes_failed",
    "store_puts_failed",
    "store_gets_failed",
)
"""The scheduler's counts of moves between tiers that failed."""

MAX_FAILED_STEPS = 8
"""Failed steps in a row after which the engine gives itself up, though its device is well."""

SILENCE_CHECK_S = 5.0

FLUSH_S = 5.0
"""Longest wait at the end for blocks on their way to a store."""


class EventLoop:
    """Runs one engine on one channel. Thread: its own only.

    Args:
        epoch: counts engine starts; messages of another epoch are dropped.
        record: where the requests in flight are noted; None in process.
        suspects: request id -> output index of the last engine's fatal step.
        kv_publisher, kv_feed: told of changes in the prefix cache; None: nobody is.
    """

    def __init__(
        self,
        engine: Engine,
        channel: EngineChannel,
        *,
        epoch: int = 1,
        record: FlightRecord | None = None,
        suspects: Mapping[str, int] | None = None,
        kv_publisher: KvPublisher | None = None,
        kv_feed: KvFeed | None = None,
    ) -> None:
        self.requests = RequestTable()
        self._engine = engine
        self._channel = channel
        self._epoch = epoch
        self._record = record
        self._kv_publisher = kv_publisher
        self._kv_feed = kv_feed
        self._is_replaying = False
        self._meter = StepMeter()
        self._activity = Activity()
        self._tally = CacheTally()
        self._flying: deque[StepPlan] = deque()
        self._failed_steps = 0
        self._model_s = 0.0
        self._blame = Blame(engine.registry.plugins)
        self._next_silence_check_s = 0.0
        gate = SuspectGate(suspects or {})
        self._snapshot = Snapshot(
            engine, self.requests, self._meter, self._activity, self._tally, epoch=epoch
        )
        self._intake = Intake(
            engine,
            channel,
            self.requests,
            gate,
            epoch=epoch,
            stats=self.stats,
            snapshot=self._snapshot,
            record=record,
            kv_feed=kv_feed,
        )
        self._publisher = Publisher(
            engine,
            channel,
            self.requests,
            gate,
            epoch=epoch,
            activity=self._activity,
            tally=self._tally,
        )

    def run(self) -> None:
        """Turn until an exception (a signal handler's) ends it."""
        ran = False
        while True:
            ran = self.turn(self.wait_ms(ran))

    def turn(self, wait_ms: int) -> bool:
        """Receive, then run and publish at most one step; False: there was nothing to run.

        Raises:
            EngineError: the executor failed, and so did its device, or too often in a row.
        """
        started_s = time.perf_counter()
        messages = self._channel.receive(wait_ms)
        if wait_ms:
            started_s = time.perf_counter()
        if self._record is not None:
            self._record.enter_turn()
        for client, message in messages:
            self._intake.take(client, message)
        self._intake.admit_compiled()
        ran = self._step()
        for client in self._publisher.take_ended():
            self._intake.drop_client(client)
        self._intake.admit_held()
        self._intake.release_sessions()
        if self._engine.recorder is not None:
            self._engine.recorder.append(self._engine.scheduler)
        if self._kv_publisher is not None or self._kv_feed is not None:
            self._tell_changes()
        if ran:
            step_s = time.perf_counter() - started_s
            self._meter.add(step_s, self._model_s)
            self._activity.note_times(model_s=self._model_s, step_s=step_s)
        elif started_s > self._next_silence_check_s:
            self._next_silence_check_s = started_s + SILENCE_CHECK_S
            self._intake.drop_silent_clients()
        if self._record is not None:
            has_work = bool(self._flying) or self._engine.scheduler.has_work()
            self._record.leave_turn(has_work=has_work)
        return ran

    def wait_ms(self, ran: bool) -> int:
        """Return how long the next receive may block: not at all while steps run.

        Args:
            ran: what the last turn returned.
        """
        if ran or self._flying or self._intake.is_releasing:
            return 0
        is_moving = self.waits_for_transfers() or self.waits_for_grammars()
        if self._engine.scheduler.has_work() or is_moving or self._is_replaying:
            return STALLED_WAIT_MS
        deadline_us = self._engine.scheduler.next_deadline_us()
        if not deadline_us:
            return IDLE_WAIT_MS
        return max(1, min(IDLE_WAIT_MS, int(deadline_us - now_us()) // 1000))

    def waits_for_grammars(self) -> bool:
        """Say whether requests wait for their grammars."""
        return self._intake.num_held > 0

    def waits_for_transfers(self) -> bool:
        """Say whether blocks are on their way between the tiers."""
        transfers = self._engine.transfers
        return transfers is not None and transfers.is_busy()

    def flush(self) -> None:
        """Let blocks that are on their way to a store arrive; call it when no request is live."""
        give_up_s = time.monotonic() + FLUSH_S
        while self._engine.transfers is not None and time.monotonic() < give_up_s:
            if not (self._engine.scheduler.has_work() or self.waits_for_transfers()):
                return
            if not self._step():
                time.sleep(STALLED_WAIT_MS / 1000)

    def state(self) -> dict[str, Any]:
        """Return a picture of everything inside, as `GET /v1/engine/state` shows it."""
        return spelled_out(self._snapshot.build())

    def stats(self) -> EngineStats:
        """Return counters and gauges as of now."""
        counts = self._engine.scheduler.stats()
        drafting = self._engine.drafting
        store, experts = self._engine.store, self._engine.expert_loads
        grammars, feed = self._engine.grammars, self._kv_feed
        graphs = self._engine.graph_counts
        return EngineStats(
            epoch=self._epoch,
            steps=self._meter.num_steps,
            running=counts["prefilling"] + counts["decoding"],
            waiting=counts["waiting"] + counts["retracted"] + self._intake.num_held,
            blocks_total=counts["blocks_total"],
            blocks_used=counts["blocks_used"],
            blocks_cached=counts["blocks_cached"],
            prompt_tokens=counts["prompt_tokens"],
            cached_tokens=counts["cached_tokens"],
            output_tokens=counts["output_tokens"],
            retractions=counts["retractions"],
            created_tokens=self._tally.total.created,
            recomputed_tokens=self._tally.total.recomputed,
            tenants=self._engine.tenants.states(),
            experts=() if experts is None else experts.figures(),
            match_ends=dict(self._tally.match_ends),
            evictions=counts["evictions"],
            loaded_tokens=counts["loaded_tokens"],
            tier_failures=sum(counts.get(name, 0) for name in TIER_FAILURES),
            tps_floor_violated=counts["tps_floor_violated"],
            host_blocks_total=counts.get("host_blocks_total", 0),
            host_blocks_free=counts.get("host_blocks_free", 0),
            store_records=counts.get("store_keys", 0),
            drafted_tokens=counts["drafted"],
            accepted_tokens=counts["accepted"],
            speculator_failures=drafting.counts.failures if drafting is not None else 0,
            speculator_detached=int(drafting is not None and drafting.detached_s is not None),
            store_failures=0 if store is None else store.num_failures,
            store_detached=int(store is not None and store.is_detached),
            graph_steps=0 if graphs is None else graphs.replayed,
            graph_sizes_failed=0 if graphs is None else len(graphs.failed),
            grammar_bytes=0 if grammars is None else grammars.cached_bytes,
            hook_calls_after_freeze=self._engine.registry.hook_calls_after_freeze,
            queued_tokens=0 if feed is None else self._engine.scheduler.queued_tokens(),
            kv_number=-1 if feed is None else feed.number,
            step_us_p50=self._meter.step_us_p50,
            overhead_us_p50=self._meter.overhead_us_p50,
        )

    def _step(self) -> bool:
        self._model_s = 0.0
        self._acknowledge()
        while len(self._flying) <= self._engine.depth:
            started_s = time.perf_counter()
            plan = self._engine.scheduler.plan(now_us=now_us())
            if plan is None:
                break
            self._activity.note_plan(plan, time.perf_counter() - started_s)
            self._launch(plan)
        if not self._flying:
            return False
        self._finish(self._flying.popleft())
        return True

    def _tell_changes(self) -> None:
        """Tell what changed in the prefix cache: who subscribed, and the server's own routers."""
        changes = self._engine.scheduler.drain_events()
        if self._kv_feed is not None:
            self._kv_feed.publish(changes)
        if self._kv_publisher is not None:
            self._kv_publisher.publish(changes)
            self._is_replaying = self._kv_publisher.turn()

    def _acknowledge(self) -> None:
        """Tell the scheduler which moves between the tiers ended, and what the store lost.

        A record may be written and dropped at any time in between: what is lost is asked for before
        what ended and told after it, so that no write counts whose record had gone by then.
        """
        transfers = self._engine.transfers
        if transfers is None:
            return
        lost = transfers.lost_keys()
        acks = transfers.poll()
        if len(acks):
            self._engine.scheduler.notify(acks, now_us=now_us())
        if len(lost):
            self._engine.scheduler.notify_store(lost, False)

    def _launch(self, plan: StepPlan) -> None:
        if self._record is not None:
            self._note(plan, self._record)
        started_s = time.perf_counter()
        try:
            self._engine.executor.launch(plan)
        except RankFailure:
            raise  # no request's fault: all of them go on with the next start
        except (Exception, SystemExit) as error:  # the latter of a plugin: it ends no process
            while self._flying:  # steps are committed in order
                self._finish(self._flying.popleft())
            self._fail(plan, error)
            return
        finally:
            self._model_s += time.perf_counter() - started_s
        self._flying.append(plan)

    def _note(self, plan: StepPlan, record: FlightRecord) -> None:
        for row, slot in plan.admitted.tolist():
            request = self.requests.by_key(int(plan.request_ids[row]))
            if request is not None:
                record.name_slot(slot, request.request_id)
        record.begin(plan)

    def _finish(self, plan: StepPlan) -> None:
        started_s = time.perf_counter()
        try:
            result = self._engine.executor.collect()
        except RankFailure:
            raise
        except (Exception, SystemExit) as error:
            self._fail(plan, error)
            return
        finally:
            self._model_s += time.perf_counter() - started_s
        self._failed_steps = 0
        self._commit(plan, result, "its logits were NaN or infinite")

    def _fail(self, plan: StepPlan, error: BaseException) -> None:
        """End the request of a step that raised, or suspect its requests if there are several."""
        cause = f"{error!r}{self._blame.place_of(error)}"
        LOGGER.error("step %d failed: %s", plan.step_id, cause, exc_info=error)
        self._failed_steps += 1
        rows = plan.num_rows
        result = StepResult(
            step_id=plan.step_id,
            tokens=np.full(rows, -1, dtype=np.int32),
            failed=np.ones(rows, dtype=np.bool_),
        )
        reason = f"the step it ran in raised {cause}"
        self._commit(plan, result, reason, tries_again=rows > 1)
        is_well = self._engine.executor.is_device_well()
        if self._failed_steps >= MAX_FAILED_STEPS or not is_well:
            raise EngineError(
                f"{self._failed_steps} steps in a row failed, the last with {cause}, and the "
                f"device {'is well' if is_well else 'fails too'}; the engine gives itself up, see "
                "its log"
            ) from error
        for request in self._publisher.take_again():
            self._intake.try_again(request)

    def _commit(
        self, plan: StepPlan, result: StepResult, reason_failed: str, *, tries_again: bool = False
    ) -> None:
        committed = self._engine.scheduler.commit(
            plan.step_id,
            result.tokens,
            accepted=result.accepted,
            failed=result.failed,
            now_us=now_us(),
        )
        if self._record is not None:
            self._record.end(plan.step_id)
        self._publisher.publish(
            plan,
            committed,
            result,
            last_step_id=self._flying[-1].step_id if self._flying else plan.step_id,
            reason_failed=reason_failed,
            tries_again=tries_again,
        )
        if self._engine.drafting is not None:
            self._engine.drafting.committed(plan, result, committed, self._model_s)
