"""Tenants never find each other's blocks, in any tier; figures in blocks through the bindings."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from tests.support.schedulers import make_scheduler

from tokenspeed.scheduler import Scheduler

BLOCK = 16
TENANTS = 8


class Driver:
    """Runs a scheduler whose moves between the tiers all end well."""

    def __init__(self, **settings: Any) -> None:
        self.scheduler: Scheduler = make_scheduler({"name": "full"}, **settings)
        self.cached: dict[int, int] = {}
        self._next_id = 1

    def ask(self, tenant: int, prompt: list[int], **options: Any) -> int:
        """Run one request to its end; return how many tokens were cached."""
        request_id, self._next_id = self._next_id, self._next_id + 1
        ids = np.array(prompt, np.int32)
        self.scheduler.submit(request_id, ids, tenant=tenant, max_new_tokens=1, now_us=1, **options)
        while self.scheduler.has_work():
            self._step()
        return self.cached[request_id]

    def _step(self) -> None:
        plan = self.scheduler.plan(now_us=1)
        if plan is None:
            return
        moves = [*plan.transfers[:, 0].tolist(), *plan.store_moves[:, 0].tolist()]
        tokens = np.where(plan.output_index >= 0, 7, -1).astype(np.int32)
        result = self.scheduler.commit(plan.step_id, tokens, now_us=1)
        for key, cached in zip(result.request_ids, result.cached_tokens, strict=True):
            if cached >= 0:
                self.cached[int(key)] = int(cached)
        if moves:
            self.scheduler.notify(np.array([(move, 1) for move in moves], np.int32), now_us=1)


@pytest.mark.parametrize(
    "tiers",
    [
        {},
        {"num_physical_blocks": 9, "host_blocks": 200, "write_policy": "on_commit"},
        {
            "num_physical_blocks": 9,
            "host_blocks": 16,
            "write_policy": "on_commit",
            "store": True,
        },
    ],
    ids=["device", "host", "store"],
)
def test_equal_text_of_eight_tenants_is_found_by_its_own_only(tiers: dict[str, Any]) -> None:
    driver = Driver(**{"num_physical_blocks": 400, "copy_cost_tokens": 0.0, **tiers})
    chance = random.Random(3)
    texts = [[chance.randrange(100) for _ in range(4 * BLOCK + 1)] for _ in range(4)]
    known: set[tuple[int, int]] = set()
    num_hits = 0
    for _ in range(400):
        tenant, text = chance.randrange(1, TENANTS + 1), chance.randrange(4)
        cached = driver.ask(tenant, texts[text])
        # A write is dropped where the host tier has no room for it: less is found, never more.
        assert cached <= (4 * BLOCK if (tenant, text) in known else 0)
        num_hits += cached == 4 * BLOCK
        known.add((tenant, text))
    assert num_hits > 300
    driver.scheduler.check_invariants()


def test_a_session_that_moves_to_another_tenant_is_told_so_and_nothing_of_its_text() -> None:
    driver = Driver()
    text = list(range(4 * BLOCK))
    driver.ask(1, text, session=5)
    assert driver.ask(2, text, session=5) == 0
    assert driver.ask(1, text, session=5) > 0


def test_figures_are_set_listed_and_refused_through_the_bindings() -> None:
    scheduler = make_scheduler({"name": "full"})
    assert scheduler.num_sets() == 64
    assert scheduler.set_tenant_limits(9, floor_blocks=3, cap_blocks=5, now_us=1) == []
    assert scheduler.tenants() == [
        {
            "tenant": 9, "floor_blocks": 3, "cap_blocks": 5, "held_blocks": 0, "cached_blocks": 0,
            "running": 0, "waiting": 0,
        }
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"floor 6 and cap 5 blocks; allowed: .*; correct them"):
        scheduler.set_tenant_limits(9, floor_blocks=6, cap_blocks=5, now_us=1)
    scheduler.set_tenant_limits(9, now_us=1)
    assert scheduler.tenants() == []
    windowed = make_scheduler({"name": "full"}, {"name": "w", "kind": "window", "window": 32})
    with pytest.raises(ValueError, match="has window or state groups; allowed: full groups only"):
        windowed.set_tenant_limits(9, cap_blocks=5, now_us=1)
