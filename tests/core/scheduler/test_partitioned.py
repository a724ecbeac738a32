"""Several schedulers seen as one: where requests go, and that nothing is lost or mixed up."""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tokenspeed.errors import CapacityError, RequestError
from tokenspeed.scheduler import FINISH_REASONS, KV_EVENTS, GroupSpec, SchedulerConfig
from tokenspeed.scheduler.joined import chunk_rows
from tokenspeed.scheduler.partition_choice import DECODE_TOKENS
from tokenspeed.scheduler.partitioned import PartitionedScheduler

if TYPE_CHECKING:
    from tokenspeed.scheduler.joined import JoinedPlan, JoinedResult

BLOCK = 16
SLOTS = 4
FIRST_SEED = 1


def make_partitioned(
    num_partitions: int = 2, *, tells_events: bool = False, **settings: Any
) -> PartitionedScheduler:
    defaults: dict[str, Any] = {
        "block_tokens": BLOCK,
        "num_physical_blocks": 65,
        "max_running": SLOTS,
        "max_waiting": 64,
        "max_step_tokens": 64,
        "max_context_tokens": 1024,
        "kv_events": True,
    }

    def make_config() -> SchedulerConfig:
        return SchedulerConfig(groups=[GroupSpec(name="full")], **{**defaults, **settings})

    return PartitionedScheduler(
        num_partitions,
        make_config,
        slots_each=settings.get("max_running", SLOTS),
        block_tokens=BLOCK,
        groups=(("full", 0),),
        tells_events=tells_events,
    )


def prompt(*parts: tuple[int, int]) -> np.ndarray[Any, Any]:
    """Return a prompt of (count, token) runs."""
    runs = [np.full(count, token, dtype=np.int32) for count, token in parts]
    return np.concatenate(runs)


def token_of(request_id: int, index: int) -> int:
    """The token that a request samples at a place of its output: nobody else's."""
    return request_id * 1000 + index


def commit(scheduler: PartitionedScheduler, plan: JoinedPlan) -> JoinedResult:
    """Commit what `token_of` samples."""
    tokens = [
        token_of(key, index) if index >= 0 else -1
        for key, index in zip(plan.request_ids.tolist(), plan.output_index.tolist(), strict=True)
    ]
    return scheduler.commit(plan.step_id, np.array(tokens, dtype=np.int32), now_us=1)


def run_out(scheduler: PartitionedScheduler) -> dict[int, list[int]]:
    """Run until nobody is left; return the tokens of each request."""
    outputs: dict[int, list[int]] = {}
    while (plan := scheduler.plan(now_us=1)) is not None:
        for key, tokens, *_ in commit(scheduler, plan).entries():
            outputs.setdefault(key, []).extend(tokens)
    return outputs


def submit(scheduler: PartitionedScheduler, key: int, ids: Any, **options: Any) -> int:
    """Submit a request; return its partition."""
    scheduler.submit(key, ids, now_us=1, **{"max_new_tokens": 4, **options})
    return scheduler.partition_of(key)


def test_requests_of_nothing_in_common_are_spread_by_load() -> None:
    scheduler = make_partitioned(4)
    assert [submit(scheduler, key, prompt((40, key))) for key in range(1, 9)] == [0, 1, 2, 3] * 2


def test_a_request_goes_where_the_longest_part_of_its_prompt_is_cached() -> None:
    scheduler = make_partitioned()
    common = (64, 7)
    assert submit(scheduler, 1, prompt((64, 1))) == 0
    assert submit(scheduler, 2, prompt(common)) == 1
    run_out(scheduler)
    assert submit(scheduler, 3, prompt(common, (20, 3))) == 1
    run_out(scheduler)
    assert scheduler.stats()["cached_tokens"] == 64


def test_requests_of_one_prefix_meet_before_it_is_computed() -> None:
    scheduler = make_partitioned()
    submit(scheduler, 1, prompt((1, 1)))
    found = [submit(scheduler, key, prompt((320, 7), (20, key))) for key in (2, 3, 4)]
    assert found == [1, 1, 1]


def test_a_long_prefix_is_worth_as_many_streams_as_it_saves_tokens() -> None:
    scheduler = make_partitioned(max_running=64)
    found = []
    for key in range(1, 6):
        ids = prompt((2 * DECODE_TOKENS, 7), (20, key))
        found.append(submit(scheduler, key, ids, max_new_tokens=500))
        run_until_decoding(scheduler)
    assert found == [0, 0, 1, 1, 0], "then the other one has the prefix too"


def test_a_short_prefix_does_not_crowd_one_partition() -> None:
    scheduler = make_partitioned(max_running=64)
    for key in range(1, 41):
        submit(scheduler, key, prompt((BLOCK, 7), (20, key)), max_new_tokens=500)
        run_until_decoding(scheduler)
    live = [part.stats()["decoding"] for part in scheduler.partitions]
    assert max(live) - min(live) <= 1 + BLOCK // DECODE_TOKENS
    assert sum(live) == 40


def run_until_decoding(scheduler: PartitionedScheduler) -> None:
    while scheduler.queued_tokens():
        plan = scheduler.plan(now_us=1)
        assert plan is not None
        commit(scheduler, plan)


def test_a_turn_without_a_cached_prefix_goes_home_to_its_session_or_its_root() -> None:
    scheduler = make_partitioned(prefix_cache=False, kv_events=False)
    submit(scheduler, 1, prompt((40, 1)), session=10)
    assert submit(scheduler, 2, prompt((40, 2)), session=11) == 1
    run_out(scheduler)
    assert submit(scheduler, 3, prompt((40, 3)), session=12, root=11) == 1
    run_out(scheduler)
    assert submit(scheduler, 4, prompt((40, 4)), session=12) == 1


def test_where_blocks_are_lacking_no_more_begins() -> None:
    scheduler = make_partitioned(num_physical_blocks=9)
    assert submit(scheduler, 1, prompt((100, 1))) == 0
    assert submit(scheduler, 2, prompt((1, 2))) == 1
    run_until_decoding(scheduler)
    assert submit(scheduler, 3, prompt((32, 1), (70, 3))) == 1, "its prefix is worth less"


def test_a_full_queue_sends_a_request_on_and_all_full_queues_refuse_it() -> None:
    scheduler = make_partitioned(max_waiting=1, max_running=1)
    for key in (1, 2):
        submit(scheduler, key, prompt((20, key)))
    with pytest.raises(CapacityError) as refused:
        submit(scheduler, 3, prompt((20, 3)))
    assert refused.value.retry_after_s is not None
    assert scheduler.partition_of(3) == -1


def test_a_plan_has_a_segment_for_each_partition_and_none_where_nothing_runs() -> None:
    scheduler = make_partitioned(3)
    assert scheduler.plan(now_us=1) is None
    for key in (1, 2):
        submit(scheduler, key, prompt((20, key)))
    plan = scheduler.plan(now_us=1)
    assert plan is not None
    assert [segment is None for segment in plan.segments] == [False, False, True]
    assert plan.partition_tokens == (20, 20, 0)
    assert plan.slots.tolist() == [plan.segments[0].slots[0], SLOTS + plan.segments[1].slots[0]]  # type: ignore[union-attr]
    assert plan.query_start.tolist() == [0, 20, 40]
    assert plan.token_ids.tolist() == [1] * 20 + [2] * 20
    assert plan.admitted.tolist() == [[0, plan.slots[0]], [1, plan.slots[1]]]
    assert list(chunk_rows(plan)) == [0, 1]


def test_steps_are_committed_in_order() -> None:
    scheduler = make_partitioned(depth=1)
    for key in (1, 2):
        submit(scheduler, key, prompt((20, key)))
    first, second = scheduler.plan(now_us=1), scheduler.plan(now_us=1)
    assert first is not None
    assert second is not None
    with pytest.raises(ValueError, match=r"step 2 is committed and the oldest .* is 1"):
        commit(scheduler, second)
    assert [row for *_, row in commit(scheduler, first).entries()] == [0, 1]


def test_reports_name_the_entries_of_all_partitions() -> None:
    scheduler = make_partitioned()
    for key in (1, 2):
        submit(scheduler, key, prompt((20, key)))
    plan = scheduler.plan(now_us=1)
    assert plan is not None
    committed = commit(scheduler, plan)
    assert committed.request_ids.tolist() == [1, 2]
    assert committed.reports[:, :3].tolist() == [[0, 0, 20], [1, 0, 20]]


def test_an_abort_and_a_stop_reach_the_request_and_a_second_one_nobody() -> None:
    scheduler = make_partitioned()
    for key in (1, 2):
        submit(scheduler, key, prompt((20, key)))
    assert scheduler.abort(2, now_us=2)
    assert scheduler.stop(1, now_us=2)
    assert not scheduler.abort(3, now_us=2)
    ended = {key: FINISH_REASONS[reason] for key, _, reason, *_ in scheduler.take_ended().entries()}
    assert ended == {1: "stop", 2: "abort"}
    assert not scheduler.abort(2, now_us=2)
    assert not scheduler.has_work()


def test_deadlines_of_every_partition_count_while_others_idle() -> None:
    scheduler = make_partitioned()
    submit(scheduler, 1, prompt((20, 1)), deadline_us=500)
    submit(scheduler, 2, prompt((20, 2)), deadline_us=300)
    assert scheduler.next_deadline_us() == 300
    scheduler.plan(now_us=400)
    ended = [(key, FINISH_REASONS[why]) for key, _, why, *_ in scheduler.take_ended().entries()]
    assert ended == [(2, "timeout")]
    assert scheduler.next_deadline_us() == 500


def test_a_session_is_released_in_all_partitions_it_was_in() -> None:
    scheduler = make_partitioned()
    submit(scheduler, 1, prompt((64, 1)), session=5)
    submit(scheduler, 2, prompt((64, 2)), session=5)
    assert scheduler.partition_of(1) != scheduler.partition_of(2)
    with pytest.raises(RequestError) as busy:
        scheduler.release(5, now_us=1)
    assert busy.value.code == "session_busy"
    run_out(scheduler)
    assert scheduler.session_totals(5)["turns"] == 2
    cached = scheduler.stats()["blocks_cached"]
    freed = scheduler.release(5, now_us=1)
    assert freed is not None
    assert freed["tokens"] >= 128
    assert scheduler.stats()["blocks_cached"] == cached - freed["blocks"][0]
    assert scheduler.release(5, now_us=1) is None


def test_what_was_freed_before_a_partition_was_busy_is_told_in_the_end() -> None:
    scheduler = make_partitioned()
    submit(scheduler, 1, prompt((64, 1)), session=5)
    run_out(scheduler)
    submit(scheduler, 2, prompt((64, 3)))
    assert submit(scheduler, 3, prompt((64, 2)), session=5) == 1
    with pytest.raises(RequestError):
        scheduler.release(5, now_us=1)
    run_out(scheduler)
    freed = scheduler.release(5, now_us=1)
    assert freed is not None
    assert freed["tokens"] >= 128


def test_the_state_has_the_requests_of_all_and_the_counts_of_each() -> None:
    scheduler = make_partitioned()
    for key in (1, 2, 3):
        submit(scheduler, key, prompt((20, key)))
    scheduler.plan(now_us=1)
    state = scheduler.state()
    assert sorted(state["requests"]["id"]) == [1, 2, 3]
    assert state["requests"]["partition"] == [
        scheduler.partition_of(k) for k in state["requests"]["id"]
    ]
    assert len(set(state["requests"]["slot"])) == 3
    assert [part["decoding"] for part in state["partitions"]] == [2, 1]
    assert state["groups"][0]["packing"] == 1
    assert state["groups"][0]["held"] == sum(state["requests"]["blocks"][0])
    assert scheduler.stats()["blocks_total"] == 128


def test_a_tenants_figures_are_refused_by_name() -> None:
    scheduler = make_partitioned()
    with pytest.raises(RequestError, match="2 partitions, which do not count tenants together"):
        scheduler.set_tenant_limits(1, floor_blocks=2, now_us=1)
    assert scheduler.set_tenant_limits(1, now_us=1) == []


def test_outside_hears_of_the_first_that_has_a_block_and_of_the_last_that_had_it() -> None:
    scheduler = make_partitioned(tells_events=True, num_physical_blocks=9)
    heard: list[tuple[str, bytes]] = []

    def listen() -> None:
        batch = scheduler.drain_events()
        if batch is not None:
            assert batch.token_start[-1] == len(batch.tokens)
            heard.extend(
                (KV_EVENTS[kind], key.tobytes())
                for kind, key in zip(batch.kinds, batch.hashes, strict=True)
            )

    same = prompt((96, 7))
    submit(scheduler, 1, same)
    run_until_decoding(scheduler)
    listen()
    assert [kind for kind, _ in heard] == ["stored"] * 6
    scheduler.partitions[1].submit(2, same, max_new_tokens=2, now_us=1)
    run_out(scheduler)
    listen()
    of_prompt = {key for _, key in heard[:6]}
    assert not [kind for kind, key in heard[6:] if key in of_prompt]
    for key, partition in ((3, 0), (4, 1)):
        other = prompt((112, 10 + key))
        scheduler.partitions[partition].submit(key, other, max_new_tokens=2, now_us=1)
        run_out(scheduler)
        listen()
        gone = [kind for kind, name in heard[6:] if name in of_prompt]
        assert len(gone) == (0 if partition == 0 else 6)
    assert set(gone) == {"removed"}


@dataclass
class Driven:
    """A partitioned scheduler, and what every request should have got so far."""

    scheduler: PartitionedScheduler
    rng: random.Random
    outputs: dict[int, list[int]] = field(default_factory=dict)
    ended: dict[int, str] = field(default_factory=dict)
    flying: list[JoinedPlan] = field(default_factory=list)

    def submit(self) -> None:
        key = len(self.outputs) + 1
        ids = prompt(
            (self.rng.randrange(1, 80), self.rng.randrange(3)), (self.rng.randrange(9), key)
        )
        self.scheduler.submit(
            key, ids, max_new_tokens=self.rng.randrange(1, 9), session=key % 5, now_us=1
        )
        self.outputs[key] = []

    def plan(self) -> None:
        plan = self.scheduler.plan(now_us=1)
        if plan is not None:
            check_joined(plan)
            self.flying.append(plan)

    def commit(self) -> None:
        if self.flying:
            self.take(commit(self.scheduler, self.flying.pop(0)))

    def abort(self) -> None:
        live = [key for key in self.outputs if key not in self.ended]
        if live:
            self.scheduler.abort(self.rng.choice(live), now_us=1)
            self.take(self.scheduler.take_ended())

    def take(self, result: JoinedResult) -> None:
        for key, tokens, reason, _, _ in result.entries():
            assert key not in self.ended
            for token in tokens:
                assert token == token_of(key, len(self.outputs[key]))
                self.outputs[key].append(token)
            if reason:
                self.ended[key] = FINISH_REASONS[reason]


def check_joined(plan: JoinedPlan) -> None:
    """Compare every joined array with what the segments say of each row."""
    rows: list[tuple[Any, ...]] = []
    for number, segment in enumerate(plan.segments):
        for row in range(segment.num_rows if segment else 0):
            assert segment is not None
            span = slice(segment.query_start[row], segment.query_start[row + 1])
            rows.append(
                (
                    segment.request_ids[row],
                    segment.slots[row] + number * SLOTS,
                    segment.context_tokens[row],
                    segment.output_index[row],
                    segment.num_drafts[row],
                    segment.token_ids[span].tolist(),
                )
            )
    found = [
        (
            plan.request_ids[row],
            plan.slots[row],
            plan.context_tokens[row],
            plan.output_index[row],
            plan.num_drafts[row],
            plan.token_ids[plan.query_start[row] : plan.query_start[row + 1]].tolist(),
        )
        for row in range(plan.num_rows)
    ]
    assert found == rows


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("num_partitions", [2, 3])
def test_random_operations_lose_and_mix_up_nothing(num_partitions: int, depth: int) -> None:
    seed = int(os.environ.get("SEED", FIRST_SEED))
    for number in range(seed, seed + 6):
        print(f"replay with SEED={number}")
        rng = random.Random(number)
        blocks = rng.choice([9, 65])
        scheduler = make_partitioned(num_partitions, depth=depth, num_physical_blocks=blocks)
        driven = Driven(scheduler, rng)
        calls = (
            driven.submit,
            driven.plan,
            driven.plan,
            driven.commit,
            driven.commit,
            driven.abort,
        )
        for call in rng.choices(calls, weights=(4, 4, 4, 4, 4, 1), k=300):
            if call != driven.submit or len(driven.outputs) - len(driven.ended) < 40:
                call()
            if rng.random() < 0.1:
                scheduler.check_invariants()
        while scheduler.has_work():
            driven.plan()
            driven.commit()
        assert driven.outputs.keys() == driven.ended.keys()
        assert set(driven.ended.values()) <= {"length", "abort"}
        assert scheduler.stats()["blocks_used"] == 0
        assert {scheduler.partition_of(key) for key in driven.outputs} == {-1}
