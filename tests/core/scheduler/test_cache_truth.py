"""Cache truth: nine planted causes get their label and position, and sessions sum to the whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tokenspeed.scheduler import MATCH_ENDS, GroupSpec, Scheduler, SchedulerConfig

COUNTS = ("cached", "created", "recomputed")


def tokens(size: int, first: int = 1) -> list[int]:
    return list(range(first, first + size))


class Engine:
    """Runs one request after another and keeps what was said of its prompt."""

    def __init__(self, *kinds: str, num_physical_blocks: int = 65) -> None:
        groups = [GroupSpec(name=f"{kind}{i}", kind=kind) for i, kind in enumerate(kinds)]
        self.scheduler = Scheduler(
            SchedulerConfig(
                block_tokens=16,
                groups=groups,
                num_physical_blocks=num_physical_blocks,
                max_running=4,
                max_waiting=16,
                max_step_tokens=64,
                max_context_tokens=1024,
            )
        )
        self.reports: dict[int, tuple[int, ...]] = {}
        self._num_submitted = 0

    def submit(self, prompt: list[int], **given: Any) -> int:
        self._num_submitted += 1
        ids = np.array(prompt, np.int32)
        options = {"max_new_tokens": 2, **given}
        self.scheduler.submit(self._num_submitted, ids, now_us=0, **options)
        return self._num_submitted

    def step(self) -> bool:
        plan = self.scheduler.plan(now_us=0)
        if plan is None:
            return False
        sampled = np.where(plan.output_index >= 0, 5000, -1).astype(np.int32)
        result = self.scheduler.commit(plan.step_id, sampled, now_us=0)
        for entry, *report in result.reports.tolist():
            self.reports[int(result.request_ids[entry])] = tuple(report)
        return True

    def ask(self, prompt: list[int], **given: Any) -> tuple[str, int, tuple[int, ...]]:
        """Answer a prompt; return why and where its match ended, and the three counts."""
        return self.finish(self.submit(prompt, **given))

    def finish(self, request_id: int) -> tuple[str, int, tuple[int, ...]]:
        while self.step():
            pass
        *counts, position, why = self.reports[request_id]
        return MATCH_ENDS[why], position, tuple(counts)


Cause = tuple[str, int, tuple[int, ...]]


def never_stored() -> Cause:
    return Engine("full").ask(tokens(80))


def complete() -> Cause:
    engine = Engine("full")
    engine.ask(tokens(80))
    return engine.ask(tokens(80))


def content() -> Cause:
    engine = Engine("full")
    engine.ask(tokens(80), session=1)
    return engine.ask([*tokens(37), 999, *tokens(42, 39)], session=1)


def evicted() -> Cause:
    engine = Engine("full")
    engine.ask(tokens(100))
    engine.ask(tokens(1010, 10_000))  # needs every block
    return engine.ask(tokens(100))


def salt() -> Cause:
    engine = Engine("full")
    engine.ask(tokens(80), session=1, salt=b"a")
    return engine.ask(tokens(80), session=1, salt=b"b")


def tenant_or_adapter() -> Cause:
    engine = Engine("full")
    engine.ask(tokens(80), session=1, tenant=1, salt=b"a")
    return engine.ask(tokens(80), session=1, tenant=2, salt=b"b")


def no_snapshot() -> Cause:
    engine = Engine("full", "state")
    engine.ask(tokens(80), reuse_points=np.array([30, 80], np.int32))
    return engine.ask([*tokens(50), *tokens(30, 2000)])


def computing() -> Cause:
    """Someone less urgent computes it: the urgent one does not wait for them."""
    engine = Engine("full")
    engine.submit(tokens(300), priority=0)
    engine.step()
    return engine.finish(engine.submit(tokens(150), priority=1))


def disabled() -> Cause:
    engine = Engine("full")
    engine.ask(tokens(80))
    return engine.ask(tokens(80), match_prefix=False)


@pytest.mark.parametrize(
    ("cause", "position", "counts"),
    [
        (never_stored, 0, (0, 80, 0)),
        (complete, 79, (79, 1, 0)),
        (content, 37, (37, 43, 0)),
        (evicted, 0, (0, 4, 96)),
        (salt, 0, (0, 80, 0)),
        (tenant_or_adapter, 0, (0, 80, 0)),
        (no_snapshot, 30, (30, 50, 0)),
        (computing, 64, (64, 86, 0)),
        (disabled, 0, (0, 80, 0)),
    ],
)
def test_a_planted_cause_gets_its_label_and_position(
    cause: Callable[[], Cause], position: int, counts: tuple[int, ...]
) -> None:
    assert cause() == (cause.__name__, position, counts)


def test_every_label_has_a_planted_cause() -> None:
    planted = {
        never_stored, complete, content, evicted, salt, tenant_or_adapter, no_snapshot, computing,
        disabled,
    }  # fmt: skip
    assert {cause.__name__ for cause in planted} == set(MATCH_ENDS)


def test_sessions_sum_to_the_counters_also_after_evictions() -> None:
    engine = Engine("full", "state")
    for turn in range(1, 8):
        for session in range(5):
            first = 1 if session < 2 else 10_000 * session
            engine.ask(tokens(60 * turn, first), session=session, salt=b"x" * (session % 2))
    stats = engine.scheduler.stats()
    totals = [engine.scheduler.session_totals(session) for session in range(5)]
    for name in (*COUNTS, "prompt", "output"):
        sums = sum(total[f"{name}_tokens"] for total in totals)
        assert sums == stats[f"{name}_tokens"], name
    assert sum(total["turns"] for total in totals) == 35 == stats["finished"]
    assert sum(stats[f"match_{why}"] for why in MATCH_ENDS) == 35
    assert stats["recomputed_tokens"] > 0
    said = [report[:3] for report in engine.reports.values()]
    assert [sum(column) for column in zip(*said, strict=True)] == [
        stats[f"{name}_tokens"] for name in COUNTS
    ]
