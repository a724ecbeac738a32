"""Window and state groups through the boundary: what a plan says, what a later prompt finds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.schedulers import make_scheduler

FULL = {"name": "full"}
WINDOW = {"name": "window", "kind": "window", "window": 20}
STATE = {"name": "state", "kind": "state"}


def submit(scheduler: Any, request_id: int, size: int, **given: Any) -> None:
    prompt = np.arange(size, dtype=np.int32)
    scheduler.submit(request_id, prompt, **{"now_us": 0, "max_new_tokens": 1, **given})


def step(scheduler: Any) -> Any:
    """Plan and commit one step; return a copy of what the plan said."""
    plan = scheduler.plan(now_us=0)
    names = ("context_tokens", "query_start", "block_updates", "copies", "state_rows")
    seen = {name: np.array(getattr(plan, name)) for name in names}
    tokens = np.where(np.array(plan.output_index) >= 0, 500, -1).astype(np.int32)
    scheduler.commit(plan.step_id, tokens, now_us=0)
    scheduler.check_invariants()
    return seen


def test_a_state_group_reads_zeros_first_and_then_its_row_in_place() -> None:
    scheduler = make_scheduler(FULL, STATE)
    submit(scheduler, 1, 14, max_new_tokens=3)
    first, second = step(scheduler)["state_rows"], step(scheduler)["state_rows"]
    assert first.shape == (1, 1, 2)
    assert first[0, 0, 0] == -1
    assert second[0, 0, 0] == first[0, 0, 1]  # the end of the prompt: published, so read only
    assert second[0, 0, 1] != second[0, 0, 0]
    third = step(scheduler)["state_rows"]
    assert third[0, 0, 0] == third[0, 0, 1] == second[0, 0, 1]


def test_rows_alternate_when_the_next_step_is_planned_ahead() -> None:
    scheduler = make_scheduler(FULL, STATE, depth=1, prefix_cache=False)
    submit(scheduler, 1, 20, max_new_tokens=6)
    rows = []
    previous = scheduler.plan(now_us=0)
    for _ in range(4):
        plan = scheduler.plan(now_us=0)
        rows.append(np.array(plan.state_rows)[0, 0].tolist())
        scheduler.commit(previous.step_id, np.array([500], np.int32), now_us=0)
        previous = plan
    assert all(read != write for read, write in rows)
    assert [read for read, _ in rows[1:]] == [write for _, write in rows[:-1]]


def test_chunks_end_at_reuse_points_and_a_later_prompt_starts_there() -> None:
    scheduler = make_scheduler(FULL, WINDOW, STATE)
    submit(scheduler, 1, 60, reuse_points=np.array([21, 48], np.int32))
    ends = []
    while scheduler.has_work():
        seen = step(scheduler)
        ends.append(int(seen["context_tokens"][0] + seen["query_start"][1]))
    assert ends == [21, 48, 60]
    submit(scheduler, 2, 40)
    seen = step(scheduler)
    assert seen["context_tokens"][0] == 21
    assert seen["copies"][:, [0, 3]].tolist() == [[0, 5], [1, 5]]  # the tail, not the state
    assert seen["state_rows"][0, 0, 0] > 0


def test_a_prompt_without_reuse_points_is_cut_where_its_repeat_starts() -> None:
    scheduler = make_scheduler(FULL, WINDOW, STATE)
    for ends in ([48, 60], [60]):
        submit(scheduler, len(ends), 60)
        seen = [step(scheduler) for _ in ends]
        assert [int(row["context_tokens"][0] + row["query_start"][1]) for row in seen] == ends
        assert not scheduler.has_work()
    assert seen[0]["context_tokens"][0] == 48
    assert len(seen[0]["copies"]) == 0


def test_a_window_group_needs_no_entries_before_its_window() -> None:
    scheduler = make_scheduler(FULL, WINDOW)
    submit(scheduler, 1, 120)
    while scheduler.has_work():
        step(scheduler)
    submit(scheduler, 2, 200)
    updates = step(scheduler)["block_updates"]
    assert updates[updates[:, 1] == 0][:, 2].tolist()[:3] == [0, 1, 2]
    assert updates[updates[:, 1] == 1][:, 2].min() == (120 - 20) // 16


def test_stored_and_removed_blocks_are_told_with_their_tokens() -> None:
    scheduler = make_scheduler(FULL, num_physical_blocks=5, kv_events=True)
    assert scheduler.drain_events() is None
    submit(scheduler, 1, 40)
    while scheduler.has_work():
        step(scheduler)
    stored = scheduler.drain_events()
    assert np.array(stored.kinds).tolist() == [0, 0]
    assert np.array(stored.parents)[1].tolist() == np.array(stored.hashes)[0].tolist()
    assert np.array(stored.tokens).tolist() == list(range(32))
    scheduler.submit(2, np.arange(1000, 1060, dtype=np.int32), max_new_tokens=1, now_us=0)
    while scheduler.has_work():
        step(scheduler)
    assert 1 in np.array(scheduler.drain_events().kinds).tolist()


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([WINDOW], 'number of groups of kind "full" is 0'),
        ([FULL, {**WINDOW, "window": 0}], 'window of group "window" is 0'),
        ([FULL, {**STATE, "window": 4}], 'window of group "state" is 4'),
        ([{**FULL, "kind": "half"}], 'kind of group "full" is "half"'),
    ],
)
def test_groups_out_of_range_are_refused(groups: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_scheduler(*groups)


def test_a_pool_too_small_for_one_request_is_refused_with_the_number() -> None:
    with pytest.raises(ValueError, match="allowed: 7 or more"):
        make_scheduler(FULL, WINDOW, STATE, num_physical_blocks=6)
