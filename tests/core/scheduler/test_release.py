"""The end of a session as the engine meets it: what is freed on the device and in the host tier."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tests.support.schedulers import make_scheduler

from tokenspeed.errors import RequestError
from tokenspeed.scheduler import Scheduler

FULL: dict[str, Any] = {"name": "full", "packing": 2}
WINDOW: dict[str, Any] = {"name": "window", "kind": "window", "window": 32}


def finish(scheduler: Scheduler) -> None:
    """Run and acknowledge until nothing is left."""
    for _ in range(200):
        plan = scheduler.plan(now_us=1)
        if plan is None:
            return
        moves = [int(row[0]) for row in (*plan.transfers, *plan.store_moves)]
        tokens = np.where(plan.output_index >= 0, 1, -1).astype(np.int32)
        scheduler.commit(plan.step_id, tokens, now_us=1)
        rows = np.array([(move, 1) for move in moves], np.int32).reshape(-1, 2)
        scheduler.notify(rows, now_us=1)
        scheduler.check_invariants()
    raise AssertionError("it ends")


def turn(scheduler: Scheduler, number: int, *parts: tuple[int, int], **fields: Any) -> None:
    """Run a prompt of stretches (first token, length)."""
    prompt = np.concatenate([np.arange(first, first + size) for first, size in parts])
    fields = {"session": number, "max_new_tokens": 1, **fields}
    scheduler.submit(number, prompt.astype(np.int32), now_us=1, **fields)
    finish(scheduler)


def tiered(**settings: Any) -> Scheduler:
    sizes = {"host_blocks": 40, "write_policy": "on_commit", "num_physical_blocks": 33}
    return make_scheduler(FULL, WINDOW, **{**sizes, **settings})


def test_a_release_tells_tokens_and_blocks_of_each_group_and_tier() -> None:
    scheduler = tiered()
    turn(scheduler, 1, (0, 64))
    turn(scheduler, 2, (0, 64), (1000, 48))
    before = scheduler.stats()["host_items"]
    freed = scheduler.release(2, now_us=2)
    assert freed is not None
    assert freed["tokens"] == 48
    assert freed["blocks"][0] == 3
    assert freed["host_blocks"][0] == 3
    scheduler.check_invariants()
    assert before - scheduler.stats()["host_items"] == sum(freed["host_blocks"])
    freed = scheduler.release(1, now_us=2)
    assert freed is not None
    assert (freed["blocks"][0], freed["host_blocks"][0]) == (4, 4)
    assert scheduler.stats()["host_items"] == 0
    assert scheduler.stats()["blocks_cached"] == 0


def test_what_left_the_device_is_given_back_in_the_host_tier() -> None:
    scheduler = tiered(write_policy="on_eviction", num_physical_blocks=17)
    turn(scheduler, 1, (0, 160))
    turn(scheduler, 2, (5000, 200))
    assert scheduler.stats()["host_items"] > 0, "some of the first had to make room"
    on_host = scheduler.stats()["host_items"]
    freed = scheduler.release(1, now_us=2)
    assert freed is not None
    assert sum(freed["host_blocks"]) == on_host
    assert scheduler.stats()["host_items"] == 0, "and nothing was saved there by the release"


def test_the_store_keeps_its_records() -> None:
    scheduler = tiered(store=True)
    turn(scheduler, 1, (0, 64))
    records = scheduler.stats()["store_keys"]
    assert records > 0
    scheduler.release(1, now_us=2)
    assert scheduler.stats()["store_keys"] == records


def test_a_release_is_told_to_routers() -> None:
    scheduler = make_scheduler(kv_events=True)
    turn(scheduler, 1, (0, 64))
    scheduler.drain_events()
    scheduler.release(1, now_us=2)
    events = scheduler.drain_events()
    assert events is not None


def test_a_live_session_is_refused_and_an_unknown_one_told() -> None:
    scheduler = make_scheduler()
    scheduler.submit(1, np.arange(64, dtype=np.int32), session=5, now_us=1)
    with pytest.raises(RequestError, match="session 5 has 1 request that did not end") as refused:
        scheduler.release(5, now_us=1)
    assert refused.value.code == "session_busy"
    assert scheduler.release(6, now_us=1) is None
    assert scheduler.release(0, now_us=1) is None


def order_of(scheduler: Scheduler) -> list[int]:
    """Run one request at a time; return the order in which they are admitted."""
    order: list[int] = []
    while (plan := scheduler.plan(now_us=1)) is not None:
        order += [int(plan.request_ids[row]) for row, _ in plan.admitted.tolist()]
        tokens = np.where(plan.output_index >= 0, 1, -1).astype(np.int32)
        scheduler.commit(plan.step_id, tokens, now_us=1)
    return order


@pytest.mark.parametrize(("root", "place"), [(0, 12), (9, 1)])
def test_an_agent_with_many_children_does_not_push_out_one_that_works_alone(
    root: int, place: int
) -> None:
    scheduler = make_scheduler(max_running=1)
    for number in range(12):
        prompt = np.arange(1000 * number, 1000 * number + 40, dtype=np.int32)
        scheduler.submit(number, prompt, root=root and 7, max_new_tokens=2, now_us=1)
    prompt = np.arange(90_000, 90_040, dtype=np.int32)
    scheduler.submit(99, prompt, root=root, max_new_tokens=2, now_us=1)
    assert order_of(scheduler).index(99) == place
