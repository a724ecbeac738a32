"""What may be matched, and when: the rules that random operations meet only rarely."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tokenspeed import _core


def make_scheduler(**changes: Any) -> Any:
    settings: dict[str, Any] = {
        "block_tokens": 16,
        "num_physical_blocks": 65,
        "max_running": 4,
        "max_waiting": 8,
        "max_step_tokens": 16,
        "max_context_tokens": 256,
        "depth": 1,
    }
    groups = [_core.GroupSpec(name="a", packing=1), _core.GroupSpec(name="b", packing=3)]
    return _core.Scheduler(_core.SchedulerConfig(groups=groups, **{**settings, **changes}))


def submit(scheduler: Any, request_id: int, tokens: list[int], **given: Any) -> None:
    scheduler.submit(request_id, np.array(tokens, np.int32), **{"now_us": 0, **given})


def commit(scheduler: Any, plan: Any, *, failed: list[bool] | None = None) -> Any:
    tokens = np.where(np.array(plan.output_index) >= 0, 5, -1).astype(np.int32)
    flags = None if failed is None else np.array(failed)
    return scheduler.commit(plan.step_id, tokens, failed=flags, now_us=0)


def context_of(plan: Any, request_id: int) -> int:
    return int(plan.context_tokens[list(plan.request_ids).index(request_id)])


def test_blocks_of_an_uncommitted_step_are_not_matched() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 1, list(range(33)))
    first, second = scheduler.plan(now_us=0), scheduler.plan(now_us=0)
    commit(scheduler, first)
    scheduler.abort(1, now_us=0)
    submit(scheduler, 2, list(range(40)))
    third = scheduler.plan(now_us=0)
    assert context_of(third, 2) == 16  # [16, 32) is computed by `second`, which is still out
    commit(scheduler, second)
    commit(scheduler, third)


def test_what_a_failed_row_wrote_is_never_matched() -> None:
    scheduler = make_scheduler(depth=0, max_step_tokens=64)
    submit(scheduler, 1, list(range(40)))
    commit(scheduler, scheduler.plan(now_us=0), failed=[True])
    submit(scheduler, 2, list(range(40)))
    assert context_of(scheduler.plan(now_us=0), 2) == 0


def test_a_tail_is_matched_token_by_token_and_copied() -> None:
    scheduler = make_scheduler(depth=0, max_step_tokens=64)
    submit(scheduler, 1, [*range(16), *range(100, 110)], max_new_tokens=1)
    commit(scheduler, scheduler.plan(now_us=0))
    submit(scheduler, 2, [*range(16), *range(100, 107), 9, 9, 9])
    plan = scheduler.plan(now_us=0)
    assert context_of(plan, 2) == 16 + 7
    assert sorted(plan.copies[:, 0].tolist()) == [0, 1]
    assert plan.copies[:, 3].tolist() == [7, 7]


def test_the_last_token_is_always_computed() -> None:
    scheduler = make_scheduler(depth=0, max_step_tokens=64)
    submit(scheduler, 1, list(range(32)), max_new_tokens=1)
    commit(scheduler, scheduler.plan(now_us=0))
    submit(scheduler, 2, list(range(32)))
    plan = scheduler.plan(now_us=0)
    assert context_of(plan, 2) == 31
    assert plan.token_ids.tolist() == [31]


@pytest.mark.parametrize("given", [{"salt": b"other"}, {"match_prefix": False}])
def test_another_namespace_and_an_opt_out_match_nothing(given: dict[str, Any]) -> None:
    scheduler = make_scheduler(depth=0, max_step_tokens=64)
    submit(scheduler, 1, list(range(40)), max_new_tokens=1)
    commit(scheduler, scheduler.plan(now_us=0))
    submit(scheduler, 2, list(range(40)), **given)
    assert context_of(scheduler.plan(now_us=0), 2) == 0


def test_an_aborted_prefill_keeps_its_finished_chunks() -> None:
    scheduler = make_scheduler(depth=0)
    submit(scheduler, 1, list(range(100)))
    for _ in range(3):
        commit(scheduler, scheduler.plan(now_us=0))
    assert scheduler.abort(1, now_us=0)
    submit(scheduler, 2, list(range(100)))
    assert context_of(scheduler.plan(now_us=0), 2) == 48


@pytest.mark.parametrize("percent", [30, 60, 90])
def test_a_prefill_cut_off_starts_again_exactly_after_its_finished_chunks(percent: int) -> None:
    prompt, chunk = list(range(640)), 16
    scheduler = make_scheduler(depth=0, max_context_tokens=1024)
    submit(scheduler, 1, prompt)
    finished = len(prompt) * percent // 100 // chunk
    for _ in range(finished):
        commit(scheduler, scheduler.plan(now_us=0))
    scheduler.abort(1, now_us=0)
    submit(scheduler, 2, prompt)
    assert context_of(scheduler.plan(now_us=0), 2) == finished * chunk
