"""The control plane over partitions of data-parallel attention: a scheduler for each, seen as one.

Each scheduler owns the cache, the slots and the requests of its partition, and knows no other. Here
it is decided which of them a request lives in (`partition_choice.py`), and their plans are joined
to steps. What is asked of all is summed; what concerns one request goes to its own.
Thread: one, like each Scheduler's. Cost: planning, sending and committing a step of 256 decodes
takes 60 us more in 2 partitions than in one, and 100 us more in 8.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenspeed._core import Scheduler
from tokenspeed.errors import CapacityError, RequestError
from tokenspeed.scheduler.event_union import EventUnion
from tokenspeed.scheduler.joined import JoinedPlan, JoinedResult
from tokenspeed.scheduler.partition_choice import PartitionChoice, PartitionLoad
from tokenspeed.scheduler.partition_state import joined_state, summed

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tokenspeed._core import CommitResult, EventBatch, PrefixKeys, SchedulerConfig
    from tokenspeed.scheduler.event_union import JoinedEvents


@dataclass(slots=True)
class _Live:
    """A live request: where it is.

    Args:
        keys: names of its prompt's blocks.
        queued_tokens: to be computed before its first token; 0 afterwards.
    """

    partition: int
    keys: PrefixKeys
    queued_tokens: int


class PartitionedScheduler:
    """Satisfies what the engine's loop needs of `Scheduler`.

    Args:
        make_config: returns the settings of one partition's scheduler, with `kv_events`.
        slots_each: requests of a partition that hold a slot at once.
        groups: (kind, window) of each cache group.
        tells_events: keep changes of the union of the caches for `drain_events`.
    """

    def __init__(
        self,
        num_partitions: int,
        make_config: Callable[[], SchedulerConfig],
        *,
        slots_each: int,
        block_tokens: int,
        groups: tuple[tuple[str, int], ...],
        tells_events: bool = False,
    ) -> None:
        self.partitions = tuple(Scheduler(make_config()) for _ in range(num_partitions))
        self._slots_each = slots_each
        self._block_tokens = block_tokens
        self._choice = PartitionChoice(num_partitions, block_tokens=block_tokens, groups=groups)
        self._union = EventUnion() if tells_events else None
        self._untold: list[tuple[int, EventBatch]] = []
        self._live: dict[int, _Live] = {}
        self._queued_tokens = [0] * num_partitions
        self._uncommitted: deque[JoinedPlan] = deque()
        self._last_step_id = 0
        self._freed: dict[int, dict[str, Any]] = {}

    def submit(
        self, request_id: int, prompt_ids: NDArray[np.int32], *, now_us: int, **options: Any
    ) -> None:
        """Queue a request in the partition where it costs least; see `Scheduler.submit`.

        Raises:
            RequestError, CapacityError: as `Scheduler.submit`; the queue of no partition has room.
        """
        if request_id in self._live:
            raise RequestError(f"request id {request_id} is in use; choose another")
        self._take_events()
        session = options.get("session", 0)
        keys = self._choice.keys_of(
            prompt_ids, tenant=options.get("tenant", 0), salt=options.get("salt", b"")
        )
        ranked = self._choice.ranked(
            keys, prompt_ids.size, self._loads(), sessions=(session, options.get("root", 0))
        )
        partition, missing = self._submit(ranked, request_id, prompt_ids, now_us, options)
        self._live[request_id] = _Live(partition, keys, missing)
        self._queued_tokens[partition] += missing
        self._choice.placed(partition, keys, session=session)

    def partition_of(self, request_id: int) -> int:
        """Return where a live request is; -1: it is not known or has ended."""
        live = self._live.get(request_id)
        return -1 if live is None else live.partition

    def abort(self, request_id: int, *, now_us: int) -> bool:
        """End a request in any state; False: it is not known or has ended."""
        live = self._live.get(request_id)
        return live is not None and self.partitions[live.partition].abort(request_id, now_us=now_us)

    def stop(self, request_id: int, *, now_us: int) -> bool:
        """End a request as finished ("stop"); False: it is not known or has ended."""
        live = self._live.get(request_id)
        return live is not None and self.partitions[live.partition].stop(request_id, now_us=now_us)

    def propose(self, request_id: int, draft_ids: NDArray[np.int32]) -> None:
        """Give a request the drafts of its next decode row.

        Raises:
            ValueError: the request is unknown or takes no such drafts.
        """
        live = self._live.get(request_id)
        self.partitions[live.partition if live else 0].propose(request_id, draft_ids)

    def plan(self, *, now_us: int) -> JoinedPlan | None:
        """Plan one step of all partitions; None: none has anything to run."""
        segments = [scheduler.plan(now_us=now_us) for scheduler in self.partitions]
        self._take_events()
        if all(segment is None for segment in segments):
            return None
        self._last_step_id += 1
        plan = JoinedPlan(self._last_step_id, segments, slots_each=self._slots_each)
        self._uncommitted.append(plan)
        return plan

    def commit(
        self,
        step_id: int,
        tokens: NDArray[np.int32],
        *,
        accepted: NDArray[np.int32] | None = None,
        failed: NDArray[np.bool_] | None = None,
        now_us: int,
    ) -> JoinedResult:
        """Make a step's results final; steps are committed in order. See `Scheduler.commit`.

        Raises:
            ValueError: not the oldest uncommitted step.
        """
        if not self._uncommitted or self._uncommitted[0].step_id != step_id:
            oldest = self._uncommitted[0].step_id if self._uncommitted else "none"
            raise ValueError(
                f"step {step_id} is committed and the oldest uncommitted one is {oldest}; commit "
                "steps in order"
            )
        plan = self._uncommitted.popleft()
        parts = []
        for partition, segment in enumerate(plan.segments):
            if segment is None:
                continue
            rows = slice(plan.row_start[partition], plan.row_start[partition + 1])
            result = self.partitions[partition].commit(
                segment.step_id,
                tokens[rows],
                accepted=None if accepted is None else accepted[rows],
                failed=None if failed is None else failed[rows],
                now_us=now_us,
            )
            self._note(result)
            parts.append((rows.start, result))
        self._take_events()
        return JoinedResult(parts)

    def take_ended(self) -> JoinedResult:
        """Return requests that ended outside a commit since the last call."""
        ended = [scheduler.take_ended() for scheduler in self.partitions]
        for result in ended:
            self._note(result)
        return JoinedResult([(0, result) for result in ended])

    def release(self, session: int, *, now_us: int) -> dict[str, Any] | None:
        """Forget a session in all partitions; see `Scheduler.release`.

        Raises:
            RequestError: requests of it live, code "session_busy"; what was freed until then is
                returned by the call that succeeds.
        """
        freed = self._freed.setdefault(session, {})
        for scheduler in self.partitions:
            part = scheduler.release(session, now_us=now_us)
            if part is not None:
                freed.update(summed([freed, part]) if freed else part)
        del self._freed[session]
        self._choice.forget(session)
        self._take_events()
        return freed or None

    def set_tenant_limits(
        self, tenant: int, *, floor_blocks: int = 0, cap_blocks: int | None = None, now_us: int
    ) -> list[int]:
        """Refuse figures of a tenant: they are kept by one scheduler, and there are several.

        Raises:
            RequestError: always, but where figures are taken away.
        """
        if not floor_blocks and cap_blocks is None:
            return []
        raise RequestError(
            f"a tenant cannot have a floor of {floor_blocks} or a cap of {cap_blocks} blocks: the "
            f"cache has {len(self.partitions)} partitions, which do not count tenants together; "
            "serve with dp 1, or without figures",
            code="unsupported_parameter",
        )

    def has_work(self) -> bool:
        """Say whether any request waits or runs, or a plan is uncommitted."""
        return any(scheduler.has_work() for scheduler in self.partitions)

    def next_deadline_us(self) -> int:
        """Return the earliest deadline of a live request, 0 for none."""
        deadlines = [scheduler.next_deadline_us() for scheduler in self.partitions]
        return min(filter(None, deadlines), default=0)

    def session_totals(self, session: int) -> dict[str, int]:
        """Return a session's sums of cache truth by name."""
        return summed([scheduler.session_totals(session) for scheduler in self.partitions])

    def stats(self) -> dict[str, int]:
        """Return counts by name, of all partitions."""
        return summed([scheduler.stats() for scheduler in self.partitions])

    def state(self) -> dict[str, Any]:
        """Return a picture of all insides as one; `partitions` has the counts of each."""
        return joined_state(
            [(scheduler.state(), scheduler.stats()) for scheduler in self.partitions],
            slots_each=self._slots_each,
        )

    def drain_events(self) -> JoinedEvents | None:
        """Return what changed in the union of the caches since the last call."""
        if self._union is None:
            return None
        self._take_events()
        untold, self._untold = self._untold, []
        return self._union.joined(untold)

    def queued_tokens(self) -> int:
        """Return how many prompt tokens of live requests are not in the cache yet."""
        return sum(scheduler.queued_tokens() for scheduler in self.partitions)

    def num_sets(self) -> int:
        """Return how many blocks of block_tokens tokens all groups together hold."""
        return sum(scheduler.num_sets() for scheduler in self.partitions)

    def tenants(self) -> list[dict[str, int | None]]:
        """Return what each tenant with figures has: there is none."""
        return []

    def check_invariants(self) -> None:
        """Recount everything from scratch; RuntimeError names the first broken invariant."""
        for scheduler in self.partitions:
            scheduler.check_invariants()

    def _submit(
        self,
        ranked: list[tuple[int, int]],
        request_id: int,
        prompt_ids: NDArray[np.int32],
        now_us: int,
        options: dict[str, Any],
    ) -> tuple[int, int]:
        """Queue a request in the first of `ranked` whose queue is not full; return which."""
        full: CapacityError | None = None
        for partition, missing in ranked:
            try:
                self.partitions[partition].submit(request_id, prompt_ids, now_us=now_us, **options)
            except CapacityError as error:
                if error.retry_after_s is None:
                    raise
                full = full or error
                continue
            return partition, missing
        assert full is not None, "there are partitions"
        raise full

    def _loads(self) -> list[PartitionLoad]:
        loads = []
        for scheduler, queued_tokens in zip(self.partitions, self._queued_tokens, strict=True):
            counts = scheduler.stats()
            live = sum(counts[name] for name in ("waiting", "prefilling", "decoding", "retracted"))
            free_share = 1 - counts["blocks_used"] / counts["blocks_total"]
            free_blocks = int(scheduler.num_sets() * free_share)
            loads.append(PartitionLoad(live, queued_tokens, free_blocks))
        return loads

    def _take_events(self) -> None:
        """Let the choice know what the caches have now."""
        for partition, scheduler in enumerate(self.partitions):
            batch = scheduler.drain_events()
            if batch is not None:
                self._choice.changed(partition, batch)
                if self._union is not None:
                    self._untold.append((partition, batch))

    def _note(self, result: CommitResult) -> None:
        """Note first tokens and ends."""
        if len(result.reports):
            for key in result.request_ids[result.reports[:, 0]].tolist():
                if key in self._live:
                    self._dequeue(self._live[key])
        for key in result.request_ids[np.flatnonzero(result.finish_reasons)].tolist():
            live = self._live.pop(key, None)
            if live is not None:
                self._dequeue(live)
                self._choice.ended(live.partition, live.keys)

    def _dequeue(self, live: _Live) -> None:
        self._queued_tokens[live.partition] -= live.queued_tokens
        live.queued_tokens = 0
