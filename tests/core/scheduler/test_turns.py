"""Turns by delta, drafts, the record and cache truth, as Python meets them."""

from __future__ import annotations

import array

import numpy as np
import pytest

from tokenspeed.errors import RequestError
from tokenspeed.scheduler import MATCH_ENDS, GroupSpec, Scheduler, SchedulerConfig, StepPlan


def make_scheduler(**changes: object) -> Scheduler:
    settings: dict[str, object] = {
        "block_tokens": 16,
        "groups": [GroupSpec(name="a")],
        "num_physical_blocks": 64,
        "max_running": 8,
        "max_waiting": 8,
        "max_step_tokens": 64,
        "max_context_tokens": 256,
    }
    return Scheduler(SchedulerConfig(**(settings | changes)))  # type: ignore[arg-type]


def prompt(size: int, first: int = 1) -> np.ndarray:
    return np.arange(first, first + size, dtype=np.int32)


def run(scheduler: Scheduler) -> list[int]:
    """Run everything; every row samples 7. Return the plans' numbers of query tokens."""
    sizes = []
    while (plan := scheduler.plan(now_us=len(sizes))) is not None:
        sizes.append(plan.num_tokens)
        scheduler.commit(plan.step_id, sampled(plan), now_us=len(sizes))
    return sizes


def sampled(plan: StepPlan) -> np.ndarray:
    return np.where(plan.output_index >= 0, 7, -1).astype(np.int32)


def test_a_turn_is_submitted_by_what_is_new() -> None:
    scheduler = make_scheduler()
    assert scheduler.session_base(9) is None
    scheduler.submit(1, prompt(50), session=9, max_new_tokens=3, now_us=0)
    run(scheduler)
    base = scheduler.session_base(9)
    assert base is not None
    tokens, digest = base
    assert tokens == 53
    scheduler.submit_turn(2, 9, tokens, digest, prompt(10, 500), max_new_tokens=1, now_us=0)
    assert run(scheduler) == [11]
    with pytest.raises(RequestError, match="send the whole prompt") as caught:
        scheduler.submit_turn(3, 9, tokens, digest ^ 1, prompt(10), now_us=0)
    assert caught.value.code == "session_base_unknown"


def test_drafts_go_in_and_accepted_tokens_come_out() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, prompt(20), max_new_tokens=9, max_drafts=3, now_us=0)
    plan = scheduler.plan(now_us=0)
    assert plan is not None
    scheduler.commit(plan.step_id, sampled(plan), now_us=0)
    scheduler.propose(1, np.array([8, 9, 4], np.int32))
    plan = scheduler.plan(now_us=0)
    assert plan is not None
    assert plan.token_ids.tolist() == [7, 8, 9, 4]
    tokens = np.array([[8, 9, 5, -1]], np.int32)
    result = scheduler.commit(plan.step_id, tokens, accepted=np.array([2], np.int32), now_us=0)
    assert result.tokens.tolist() == [8, 9, 5]
    assert result.num_tokens.tolist() == [3]
    assert result.entries() == [(1, (8, 9, 5), 0, -1, 0)]
    with pytest.raises(ValueError, match="3 drafts; allowed: up to 0"):
        scheduler.propose(2, prompt(3))


def test_a_record_replays_to_the_same_plans() -> None:
    scheduler = make_scheduler(record_events=True)
    for i in range(5):
        scheduler.submit(i, prompt(40 + i), session=1, max_new_tokens=3, now_us=i)
    steps = len(run(scheduler))
    record = scheduler.take_record()
    assert scheduler.take_record() == b""
    assert make_scheduler(record_events=True).replay(record) == steps
    with pytest.raises(ValueError, match="plan 1 differs"):
        make_scheduler(max_step_tokens=32).replay(record)
    with pytest.raises(ValueError, match="TSR2"):
        make_scheduler().replay(b"no record")


def test_reports_and_session_totals_tell_the_truth() -> None:
    scheduler = make_scheduler()
    ends = []
    for i in range(2):
        scheduler.submit(i, prompt(50), session=4, max_new_tokens=1, now_us=0)
        plan = scheduler.plan(now_us=0)
        assert plan is not None
        result = scheduler.commit(plan.step_id, sampled(plan), now_us=0)
        ((entry, cached, created, recomputed, position, end),) = result.reports.tolist()
        ends.append((entry, cached, created, recomputed, position, MATCH_ENDS[end]))
    assert ends == [(0, 0, 50, 0, 0, "never_stored"), (0, 49, 1, 0, 49, "complete")]
    totals = scheduler.session_totals(4)
    assert totals["prompt_tokens"] == scheduler.stats()["prompt_tokens"] == 100
    assert totals["cached_tokens"] == 49


def test_a_step_without_changed_sizes_makes_no_array() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, prompt(20), max_new_tokens=40, now_us=0)
    seen = set()
    tokens = array.array("i", [7])
    for _ in range(12):
        plan = scheduler.plan(now_us=0)
        assert plan is not None
        if plan.num_decode_rows:
            seen.add(id(plan.slots))
            assert plan.slots is plan.slots
        scheduler.commit(plan.step_id, tokens, now_us=0)
    assert len(seen) <= 2


def test_a_row_retracted_with_drafts_reserved_starts_again_without_them() -> None:
    scheduler = make_scheduler(num_physical_blocks=5)
    scheduler.submit(1, prompt(20), max_drafts=2, device_drafts=True, max_new_tokens=9, now_us=0)
    seen = []
    while (plan := scheduler.plan(now_us=len(seen))) is not None:
        ids, start = plan.request_ids.tolist(), plan.query_start.tolist()
        if 1 in ids:
            row = ids.index(1)
            seen.append(plan.token_ids[start[row] : start[row + 1]].tolist())
        tokens = np.stack([sampled(plan)] * 3, axis=1)
        accepted = np.zeros(plan.num_rows, dtype=np.int32)
        scheduler.commit(plan.step_id, tokens, accepted=accepted, now_us=len(seen))
        if plan.step_id == 1:  # whoever is more urgent stands behind in the order of the rows
            scheduler.submit(2, prompt(31, 500), priority=1, max_new_tokens=4, now_us=0)
    assert scheduler.stats()["retractions"] == 1
    assert seen[:3] == [[*range(1, 21)], [7, -1, -1], [7, -1, -1]]
    assert seen[3][:4] == [17, 18, 19, 20], "its first block is still there"
    assert set(seen[3][4:]) == {7}, "all of its tokens are known"
