"""KV events of random work: a block is stored where it was not, and removed where it was."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import pytest

from tokenspeed.scheduler import KV_EVENTS, KV_MEDIUMS, GroupSpec, Scheduler, SchedulerConfig

SEEDS = (
    [int(os.environ["TOKENSPEED_TEST_SEED"])] if "TOKENSPEED_TEST_SEED" in os.environ else [1, 2]
)


class Listener:
    """Believes what it is told, and checks that each event changes something."""

    def __init__(self) -> None:
        self.held: set[tuple[str, int, bytes]] = set()
        self.lengths: set[int] = set()

    def take(self, events: Any) -> None:
        if events is None:
            return
        for index, kind in enumerate(events.kinds):
            medium = KV_MEDIUMS[events.mediums[index]]
            entry = (medium, int(events.groups[index]), events.hashes[index].tobytes())
            if KV_EVENTS[kind] == "stored":
                assert entry not in self.held, "stored twice"
                self.held.add(entry)
                self.lengths.add(int(events.token_start[index + 1] - events.token_start[index]))
            else:
                self.held.remove(entry)

    def count(self, medium: str, group: int) -> int:
        return sum(entry[:2] == (medium, group) for entry in self.held)


def make_scheduler() -> Scheduler:
    return Scheduler(
        SchedulerConfig(
            block_tokens=16,
            groups=[
                GroupSpec(name="full", packing=2),
                GroupSpec(name="window", kind="window", window=24),
                GroupSpec(name="state", kind="state"),
            ],
            num_physical_blocks=40,
            max_running=4,
            max_waiting=300,
            max_step_tokens=64,
            max_context_tokens=400,
            host_blocks=30,
            write_policy="on_eviction",
            store=True,
            copy_cost_tokens=0.0,
            kv_events=True,
        )
    )


def turn(scheduler: Scheduler, draw: random.Random, lost: list[Any], now_us: int) -> bool:
    """Run one plan; some transfers fail, and the store loses a record now and then."""
    plan = scheduler.plan(now_us=now_us)
    if plan is None:
        return False
    moves = [*plan.transfers.tolist(), *plan.store_moves.tolist()]
    lost += [np.array(key) for key in plan.store_keys]
    sampled = np.where(plan.output_index >= 0, 7, -1).astype(np.int32)
    scheduler.commit(plan.step_id, sampled, now_us=now_us)
    if moves:
        acks = np.array([(move[0], draw.random() > 0.1) for move in moves], np.int32)
        scheduler.notify(acks, now_us=now_us)
    if lost and draw.random() < 0.1:
        scheduler.notify_store(np.array([lost.pop(draw.randrange(len(lost)))], np.uint8), False)
    return True


@pytest.mark.parametrize("seed", SEEDS)
def test_every_event_changes_what_a_listener_believes(seed: int) -> None:
    print(f"TOKENSPEED_TEST_SEED={seed}")
    draw, scheduler, listener = random.Random(seed), make_scheduler(), Listener()
    lost: list[Any] = []
    for key in range(1, 250):
        first, size = 1 + 1000 * draw.randrange(8), draw.choice((32, 96, draw.randrange(1, 250)))
        salt = draw.choice((b"", b"s"))
        ids = np.arange(first, first + size, dtype=np.int32)
        scheduler.submit(key, ids, max_new_tokens=draw.randrange(1, 20), salt=salt, now_us=key)
        for _ in range(draw.randrange(4)):
            turn(scheduler, draw, lost, key)
        if draw.random() < 0.1:
            scheduler.abort(key, now_us=key)
        listener.take(scheduler.drain_events())
    while turn(scheduler, draw, lost, 1000):
        pass
    scheduler.check_invariants()
    listener.take(scheduler.drain_events())
    state = scheduler.state()
    assert listener.lengths == {16}
    for index, group in enumerate(state["groups"]):
        assert 0 < listener.count("device", index) <= group["indexed"]
        assert 0 < listener.count("host", index) <= group["host"]
        assert listener.count("store", index) > 0
    told = sum(listener.count("store", index) for index in range(3))
    assert told <= state["store_records"], "parts of blocks have no name"
