"""Loading and Retracting as the engine meets them: plans, acknowledgements, ends in between."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tokenspeed.scheduler import GroupSpec, Scheduler, SchedulerConfig

BLOCK_TOKENS = 16


class Harness:
    """A scheduler with a host tier; runs plans by sampling 1, and keeps acknowledgements back."""

    def __init__(self, **settings: Any) -> None:
        sizes = {
            "block_tokens": BLOCK_TOKENS,
            "groups": [GroupSpec(name="full")],
            "num_physical_blocks": 9,
            "max_running": 4,
            "max_waiting": 8,
            "max_step_tokens": 256,
            "max_context_tokens": 128,
            "host_blocks": 20,
            "write_policy": "on_commit",
            "layer_ranges": 2,
        }
        self.scheduler = Scheduler(SchedulerConfig(**{**sizes, **settings}))
        self.pending: list[int] = []
        self.plans: list[Any] = []
        self.ended: dict[int, int] = {}

    def submit(self, request_id: int, first: int, length: int = 96, **fields: Any) -> None:
        prompt = np.arange(first, first + length, dtype=np.int32)
        fields = {"max_new_tokens": 2, **fields}
        self.scheduler.submit(request_id, prompt, now_us=0, **fields)

    def step(self, now_us: int = 0) -> Any:
        """Plan and commit once; None where there is nothing to run."""
        plan = self.scheduler.plan(now_us=now_us)
        if plan is None:
            return None
        self.pending += [int(row[0]) for row in plan.transfers]
        self.pending += [int(row[0]) for row in plan.store_moves]
        moves = {
            "rows": plan.num_rows,
            "transfers": plan.transfers.tolist(),
            "store_moves": plan.store_moves.tolist(),
            "context": plan.context_tokens.tolist(),
        }
        tokens = np.where(plan.output_index >= 0, 1, -1).astype(np.int32)
        self.scheduler.commit(plan.step_id, tokens, now_us=now_us)
        self.scheduler.check_invariants()
        self.plans.append(moves)
        return moves

    def acknowledge(self, *, ok: bool = True) -> None:
        rows = [(transfer_id, int(ok)) for transfer_id in self.pending]
        self.pending = []
        self.scheduler.notify(np.array(rows, dtype=np.int32).reshape(-1, 2), now_us=0)
        self.scheduler.check_invariants()

    def finish(self) -> None:
        """Run and acknowledge until nothing is left."""
        for _ in range(200):
            moved = self.step()
            if self.pending:
                self.acknowledge()
            elif moved is None:
                return
        raise AssertionError("it ends")

    def counts(self) -> dict[str, int]:
        return dict(self.scheduler.stats())

    def evict_first(self) -> None:
        """Answer request 1 and push its blocks out by request 2."""
        self.submit(1, 0)
        self.finish()
        self.submit(2, 1000, length=112)
        self.finish()


def test_a_prompt_in_the_host_loads_by_layer_ranges_and_then_runs() -> None:
    harness = Harness()
    harness.evict_first()
    harness.submit(3, 0)
    plan = harness.step()
    assert plan["rows"] == 0
    loads = [row for row in plan["transfers"] if row[1] == 1]
    assert [row[5] for row in loads] == [0] * (len(loads) // 2) + [1] * (len(loads) // 2)
    assert harness.counts()["loading"] == 1
    assert harness.step() is None, "it waits, and there is nothing else"
    harness.acknowledge()
    plan = harness.step()
    assert plan["context"] == [80], "five of six blocks: the last token is always computed"
    harness.finish()
    assert harness.counts()["loaded_tokens"] == 80


def test_others_run_while_one_loads() -> None:
    harness = Harness(num_physical_blocks=16)
    harness.submit(1, 0)
    harness.finish()
    for request_id in (2, 3):
        harness.submit(request_id, 1000 * request_id, length=112)
        harness.finish()
    harness.submit(4, 0, length=90)
    harness.submit(5, 9000, length=40, max_new_tokens=20)
    harness.step()
    assert harness.counts()["loading"] == 1
    rows = [harness.step()["rows"] for _ in range(5)]
    assert rows == [1] * 5
    harness.finish()
    assert harness.counts()["finished"] == 5


@pytest.mark.parametrize("how", ["abort", "stop", "timeout"])
def test_an_end_while_loading_drains_until_the_last_acknowledgement(how: str) -> None:
    harness = Harness()
    harness.evict_first()
    harness.submit(3, 0, deadline_us=50 if how == "timeout" else 0)
    harness.step()
    if how == "timeout":
        assert harness.step(now_us=60) is None
    else:
        assert getattr(harness.scheduler, how)(3, now_us=0)
    counts = harness.counts()
    assert (counts["loading"], counts["draining"]) == (0, 1)
    assert counts["blocks_used"] > 0, "transfers write into its blocks"
    last = harness.pending.pop()
    harness.acknowledge()
    assert harness.counts()["draining"] == 1
    harness.pending = [last]
    harness.acknowledge(ok=False)
    counts = harness.counts()
    assert (counts["draining"], counts["blocks_used"]) == (0, 0)


def test_a_load_that_failed_is_computed_again() -> None:
    harness = Harness()
    harness.evict_first()
    harness.submit(3, 0)
    harness.step()
    harness.acknowledge(ok=False)
    counts = harness.counts()
    assert (counts["loading"], counts["retracted"], counts["loads_failed"]) == (0, 1, 1)
    assert harness.step()["context"] == [0]
    harness.finish()
    assert harness.counts()["finished"] == 3


def test_a_failed_write_is_never_counted_as_stored() -> None:
    harness = Harness(write_policy="on_commit", store=True)
    harness.submit(1, 0)
    while harness.step() is not None:
        pass
    assert harness.pending
    harness.acknowledge(ok=False)
    assert harness.step() is None, "nothing is handed on to the store"
    counts = harness.counts()
    assert (counts["host_items"], counts["store_keys"]) == (0, 0)


def test_a_victim_is_saved_and_waits_as_retracting() -> None:
    harness = Harness(write_policy="none", num_physical_blocks=9, host_blocks=40)
    harness.submit(1, 0, length=60, max_new_tokens=60)
    harness.submit(2, 5000, length=50, max_new_tokens=60)
    for _ in range(60):
        plan = harness.step()
        if harness.counts()["retracting"]:
            break
    assert plan is not None
    assert [row[1] for row in plan["transfers"]] == [0, 0, 0]
    used = harness.counts()["blocks_used"]
    assert harness.step() is None or harness.counts()["blocks_used"] == used
    harness.acknowledge()
    counts = harness.counts()
    assert (counts["retracting"], counts["retracted"], counts["saved"]) == (0, 1, 1)
    harness.finish()
    counts = harness.counts()
    assert counts["finished"] == 2
    assert counts["loads"] >= 1, "it came back from the host"


@pytest.mark.parametrize("how", ["abort", "stop"])
def test_an_end_while_retracting_drains(how: str) -> None:
    harness = Harness(write_policy="none", num_physical_blocks=9, host_blocks=40)
    harness.submit(1, 0, length=60, max_new_tokens=60)
    harness.submit(2, 5000, length=50, max_new_tokens=60)
    while not harness.counts()["retracting"]:
        harness.step()
    assert getattr(harness.scheduler, how)(2, now_us=0)
    assert harness.counts()["draining"] == 1
    harness.acknowledge()
    assert harness.counts()["draining"] == 0
    harness.finish()
    assert harness.counts()["blocks_used"] == 0


def test_copying_that_costs_more_than_computing_is_left() -> None:
    harness = Harness(copy_cost_tokens=1000.0)
    harness.evict_first()
    harness.submit(3, 0)
    assert harness.step()["context"] == [0]


def test_unknown_and_doubled_acknowledgements_are_refused() -> None:
    harness = Harness()
    harness.submit(1, 0)
    harness.step()
    harness.step()
    known = harness.pending[0]
    for rows in ([(9999, 1)], [(known, 1), (known, 1)]):
        with pytest.raises(ValueError, match="is not under way"):
            harness.scheduler.notify(np.array(rows, dtype=np.int32), now_us=0)
    harness.acknowledge()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"host_blocks": 1}, "host_blocks is 1; allowed: 0, or 2"),
        ({"host_blocks": 2**31 - 1}, "host_blocks is 2147483647; allowed: 0, or 2"),
        ({"host_blocks": 0, "write_policy": "none", "store": True}, "store is 1"),
        ({"host_blocks": 0}, 'write_policy is "on_commit"'),
        ({"write_policy": "never"}, 'write_policy is "never"'),
        ({"copy_cost_tokens": -1.0}, "copy_cost_tokens"),
    ],
)
def test_settings_that_do_not_fit_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Harness(**settings)
