"""The picture of the inside: reasons to wait, positions, and counts that equal a recount."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import numpy as np
from tests.support.schedulers import FULL, make_scheduler

from tokenspeed.scheduler import Scheduler

WINDOW = {"name": "window", "kind": "window", "window": 24}
STATE = {"name": "state", "kind": "state"}


def submit(
    scheduler: Scheduler, key: int, size: int, first: int | None = None, **given: Any
) -> None:
    start = 1000 * key if first is None else first
    ids = np.arange(start, start + size, dtype=np.int32)
    scheduler.submit(key, ids, **{"max_new_tokens": 40, "now_us": 0, **given})


def step(scheduler: Scheduler, now_us: int = 0) -> Any:
    plan = scheduler.plan(now_us=now_us)
    if plan is not None:
        sampled = np.where(plan.output_index >= 0, 7, -1).astype(np.int32)
        scheduler.commit(plan.step_id, sampled, now_us=now_us)
    return plan


def rows(scheduler: Scheduler) -> dict[int, dict[str, Any]]:
    """The requests of the picture by id."""
    columns = dict(scheduler.state()["requests"])
    columns["blocks"] = list(zip(*columns["blocks"], strict=True))
    entries = [
        dict(zip(columns, entry, strict=True)) for entry in zip(*columns.values(), strict=True)
    ]
    return {entry["id"]: entry for entry in entries}


def test_a_request_is_told_with_its_tokens_terms_and_blocks() -> None:
    scheduler = make_scheduler(FULL, WINDOW, STATE)
    submit(scheduler, 5, 70, priority=3, tenant=9, session=8)
    scheduler.plan(now_us=0)
    request = rows(scheduler)[5]
    assert (request["state"], request["reason"], request["slot"]) == ("Prefilling", "", 0)
    assert (request["priority"], request["tenant"], request["session"]) == (3, 9, 8)
    assert (request["prompt_tokens"], request["computed_tokens"]) == (70, 0)
    assert (request["planned_tokens"], request["cached_tokens"], request["position"]) == (64, 0, -1)
    assert request["blocks"] == (4, 4, 1)


def test_the_first_waits_for_a_slot_and_the_rest_for_it() -> None:
    scheduler = make_scheduler(max_running=1)
    for key in (1, 2, 3):
        submit(scheduler, key, 20, priority=key)
    assert {key: row["reason"] for key, row in rows(scheduler).items()} == {
        1: "queue", 2: "queue", 3: "next_step",
    }  # fmt: skip
    step(scheduler)
    seen = rows(scheduler)
    assert [seen[key]["reason"] for key in (3, 2, 1)] == ["", "slots", "queue"]
    assert [seen[key]["position"] for key in (3, 2, 1)] == [-1, 0, 1]


def test_what_does_not_fit_waits_for_room() -> None:
    scheduler = make_scheduler(num_physical_blocks=9)  # 16 blocks of 16 tokens
    submit(scheduler, 1, 150)
    for _ in range(3):
        step(scheduler)
    submit(scheduler, 2, 150)
    step(scheduler)
    assert rows(scheduler)[2]["reason"] == "room"


def test_who_waits_for_a_block_that_is_being_computed_names_its_owner() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 1, 300, first=1)
    step(scheduler)
    submit(scheduler, 2, 120, first=1)
    step(scheduler)
    request = rows(scheduler)[2]
    assert (request["reason"], request["waits_for"], request["position"]) == ("computing", 1, -1)
    assert scheduler.state()["parked"] == 1


def test_a_long_prefill_that_gives_way_is_displaced() -> None:
    scheduler = make_scheduler()
    submit(scheduler, 1, 600)
    step(scheduler)
    submit(scheduler, 2, 64)
    step(scheduler)
    assert rows(scheduler)[1]["reason"] == "displaced"


def test_positions_are_the_order_in_which_requests_start() -> None:
    """Tenants, priorities and lengths of their own; nobody comes or goes in between."""
    rng = np.random.default_rng(7)
    scheduler = make_scheduler(max_running=1, prefix_cache=False)
    submit(scheduler, 1000, 20)
    step(scheduler)
    for key in range(1, 40):
        size, tenant, priority = rng.integers((1, 0, 0), (200, 4, 2)).tolist()
        submit(scheduler, key, size, tenant=tenant, priority=priority, max_new_tokens=1)
    waiting = [row for row in rows(scheduler).values() if row["position"] >= 0]
    expected = [row["id"] for row in sorted(waiting, key=lambda row: row["position"])]
    scheduler.abort(1000, now_us=0)
    started: list[int] = []
    while scheduler.has_work():
        plan = step(scheduler)
        started += [int(plan.request_ids[row]) for row, _ in plan.admitted.tolist()]
    assert started == expected


def check_groups(scheduler: Scheduler) -> None:
    """Compare the counts of each group with a recount from every block."""
    state, blocks = scheduler.state(), scheduler.blocks()
    refs = [(item["group"], item["refs"]) for item in blocks["physical_blocks"]]
    used = Counter(group for group, count in refs if count)
    occupied = Counter(group for group, _ in refs)
    for index, group in enumerate(state["groups"]):
        assert group["physical_used"] == used[index]
        assert group["physical_cached"] == occupied[index] - used[index]
        room = (group["physical_used"] + group["physical_cached"]) * group["packing"]
        assert group["held"] + group["resting"] + group["vacant"] == room
    for request in blocks["requests"]:
        told = rows(scheduler)[request["id"]]["blocks"]
        for index, held in enumerate(request["blocks"]):
            if state["groups"][index]["kind"] == "full":
                assert told[index] == len(held)
    stats = scheduler.stats()
    assert sum(group["physical_used"] for group in state["groups"]) == stats["blocks_used"]
    assert sum(group["physical_cached"] for group in state["groups"]) == stats["blocks_cached"]


def test_counts_by_group_equal_a_recount() -> None:
    for groups in ((FULL,), ({"name": "full"},), (FULL, WINDOW, STATE)):
        rng = np.random.default_rng(3)
        scheduler = make_scheduler(*groups)
        for key in range(1, 40):
            first, size = rng.integers((0, 1), (3, 200)).tolist()
            submit(scheduler, key, size, first=1 + 500 * first, max_new_tokens=3)
            for _ in range(2):
                step(scheduler)
                check_groups(scheduler)
        while scheduler.has_work():
            step(scheduler)
        check_groups(scheduler)
        assert any(group["resting"] for group in scheduler.state()["groups"])


def test_a_load_tells_its_pieces_and_transfers_their_age() -> None:
    scheduler = make_scheduler(
        {"name": "full"}, num_physical_blocks=9, host_blocks=33, write_policy="on_commit",
        copy_cost_tokens=0.0, layer_ranges=2, store=True,
    )  # fmt: skip

    def drain(now_us: int) -> None:
        while (plan := step(scheduler, now_us)) is not None:
            moves = [*plan.transfers.tolist(), *plan.store_moves.tolist()]
            acks = np.array([(move[0], 1) for move in moves], np.int32).reshape(-1, 2)
            scheduler.notify(acks, now_us=now_us)

    for key in (1, 2):  # the second one takes the blocks of the first
        submit(scheduler, key, 100, max_new_tokens=1)
        drain(key)
    state = scheduler.state()
    assert state["store_records"] == state["host"]["items"] == 12
    assert (state["host"]["total"], state["host"]["used"], state["host"]["free"]) == (32, 0, 20)
    assert state["groups"][0]["host"] == 12
    submit(scheduler, 3, 100, first=1000, now_us=50, max_new_tokens=1)
    plan = scheduler.plan(now_us=50)
    request = rows(scheduler)[3]
    assert (request["state"], request["reason"]) == ("Loading", "loading")
    assert (request["arrived"], request["pieces"]) == (0, plan.transfers.shape[0] // 2)
    state = scheduler.state()
    (load,) = [item for item in state["transfers"] if item["kind"] == "load"]
    assert (load["count"], load["oldest_us"]) == (plan.transfers.shape[0], 50)
    assert state["groups"][0]["loading"] == request["pieces"]
    block = plan.transfers[0, 3]
    parts = plan.transfers[plan.transfers[:, 3] == block]
    scheduler.notify(np.array([(part[0], 1) for part in parts], np.int32), now_us=60)
    assert rows(scheduler)[3]["arrived"] == 1
    assert scheduler.state()["groups"][0]["loading"] == request["pieces"] - 1


def test_the_step_model_is_there_with_a_floor_only() -> None:
    assert make_scheduler().state()["step_model"] is None
    scheduler = make_scheduler(min_tps_per_user=50.0)
    submit(scheduler, 1, 40, now_us=1)
    now_us = 1
    for _ in range(60):
        plan = scheduler.plan(now_us=now_us)
        if plan is None:
            break
        now_us += 2000 + 100 * plan.num_tokens
        sampled = np.where(plan.output_index >= 0, 7, -1).astype(np.int32)
        scheduler.commit(plan.step_id, sampled, now_us=now_us)
    model = scheduler.state()["step_model"]
    assert model["floor_tps"] == 50
    assert model["steps"] >= 30
    assert model["violated"] == 0
    assert not model["is_outgrown"]


def test_its_cost_does_not_follow_the_length_of_contexts() -> None:
    """128 requests of 64 and of 4,096 blocks: the same picture, the same time."""
    times_s = []
    for num_blocks in (64, 4096):
        scheduler = make_scheduler(
            {"name": "full"}, num_physical_blocks=64 * (num_blocks + 16) + 9, max_running=64,
            max_step_tokens=64 * 1024 + 64, max_context_tokens=100_000,
        )  # fmt: skip
        for key in range(64):
            submit(scheduler, key + 1, num_blocks * 16 - 8, first=key * 100_000, max_new_tokens=100)
        while scheduler.stats()["decoding"] < 64:
            step(scheduler)
        best_s = 1.0
        for _ in range(30):
            started_s = time.thread_time()
            scheduler.state()
            best_s = min(best_s, time.thread_time() - started_s)
        times_s.append(best_s)
    assert times_s[1] < 4 * times_s[0], "a walk over blocks would take 64 times as long"
