"""What the publisher makes of commits: cache reports with first tokens, and waits too long."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tokenspeed.contracts.step import StepResult
from tokenspeed.engine.activity import Activity
from tokenspeed.engine.cache_tally import CacheTally
from tokenspeed.engine.messages import CacheReport, Refused, TokensOut
from tokenspeed.engine.publisher import Publisher
from tokenspeed.engine.requests import LiveRequest, RequestTable
from tokenspeed.engine.suspects import SuspectGate
from tokenspeed.scheduler import FINISH_REASONS, MATCH_ENDS

Entry = tuple[int, int, str, int]
"""key, token, finish reason, cached tokens."""


class Bench:
    """A publisher over a scheduler that only counts, and what it sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.table = RequestTable()
        self.tally = CacheTally()
        self.ended: list[int] = []
        self.now: Any = None
        scheduler = SimpleNamespace(
            stats=lambda: {"waiting": 3}, take_ended=lambda: self.now or commit([])
        )
        engine: Any = SimpleNamespace(
            scheduler=scheduler,
            executor=SimpleNamespace(remove_request=self.ended.append),
            policy=SimpleNamespace(turn_ended=lambda session, now_us: None),
            drafting=None,
        )
        channel: Any = SimpleNamespace(send=lambda _, message: self.sent.append(message) or True)
        self.publisher = Publisher(
            engine,
            channel,
            self.table,
            SuspectGate({}),
            epoch=1,
            activity=Activity(),
            tally=self.tally,
        )

    def add(self, key: int, **fields: Any) -> None:
        """Enter a request that arrived just now."""
        fields = {"arrived_s": time.monotonic(), **fields}
        self.table.add(LiveRequest(key, f"r{key}", b"c", **fields))

    def commit(self, entries: list[Entry], reports: list[tuple[int, ...]] = []) -> None:  # noqa: B006
        """Publish one step."""
        plan: Any = SimpleNamespace(step_id=1, num_tokens=8, request_ids=np.zeros(0))
        result = StepResult(1, np.zeros(0, dtype=np.int32))
        self.publisher.publish(
            plan, commit(entries, reports), result, last_step_id=1, reason_failed=""
        )


def commit(entries: list[Entry], reports: list[tuple[int, ...]] = []) -> Any:  # noqa: B006
    """What the scheduler returns from a commit."""
    runs = [(key, [token] if token >= 0 else [], *end) for key, token, *end in entries]
    return commit_runs(runs, reports)


def commit_runs(
    runs: list[tuple[Any, ...]],
    reports: list[tuple[int, ...]] = [],  # noqa: B006
) -> Any:
    """What the scheduler returns when rows had drafts: runs of tokens."""
    listed = [
        (key, tuple(tokens), FINISH_REASONS.index(reason), *(cached or [-1]), -1)
        for key, tokens, reason, *cached in runs
    ]
    rows = np.array(reports, dtype=np.int32).reshape(-1, 6)
    keys = np.array([entry[0] for entry in listed], dtype=np.int64)
    return SimpleNamespace(request_ids=keys, entries=lambda: listed, reports=rows)


@pytest.fixture
def bench() -> Bench:
    return Bench()


def test_a_report_goes_with_its_entrys_delta_and_is_summed_by_session(bench: Bench) -> None:
    bench.add(1)
    bench.add(2, session="talk")
    why = MATCH_ENDS.index("evicted")
    bench.commit([(1, 5, "", -1), (2, 6, "", 32)], [(1, 32, 10, 6, 32, why)])
    (message,) = bench.sent
    first, second = message.deltas
    assert first.cache is None
    assert second.cache == CacheReport(32, 10, 6, 32, "evicted")
    live = bench.table.by_key(2)
    assert live is not None
    assert (live.cached_tokens, live.cache) == (32, second.cache)
    assert bench.tally.sessions.shown()[0]["session"] == "talk"
    assert bench.tally.match_ends == {"evicted": 1}


def test_every_request_gets_its_own_run_of_tokens(bench: Bench) -> None:
    for key in (1, 2, 3, 4):
        bench.add(key)
    bench.now = commit_runs(
        [(1, [5, 6, 7], ""), (2, [], "abort"), (3, [8], ""), (4, [9, 0], "stop")]
    )
    bench.publisher.take_ended()
    (message,) = bench.sent
    deltas = [(delta.request_id, delta.tokens, delta.finish_reason) for delta in message.deltas]
    assert deltas == [
        ("r1", (5, 6, 7), None),
        ("r2", (), "abort"),
        ("r3", (8,), None),
        ("r4", (9, 0), "stop"),
    ]
    live = bench.table.by_key(1)
    assert live is not None
    assert live.num_outputs == 3
    assert bench.table.by_key(4) is None


def test_a_run_of_an_unknown_request_is_passed_over_whole(bench: Bench) -> None:
    bench.add(2)
    bench.now = commit_runs([(1, [5, 6, 7], ""), (2, [8, 9], "")])
    bench.publisher.take_ended()
    assert bench.sent[0].deltas[0].tokens == (8, 9)


def test_a_resumed_request_is_not_counted_again(bench: Bench) -> None:
    bench.add(1, is_resumed=True)
    bench.commit([(1, 5, "", 8)], [(0, 8, 2, 0, 8, 0)])
    assert bench.sent[0].deltas[0].cache is not None
    assert bench.tally.total.prompts == 0


def test_a_wait_that_was_too_long_is_a_refusal_with_a_time_to_retry(bench: Bench) -> None:
    bench.add(1)
    bench.now = commit([(1, -1, "timeout", -1)])
    bench.publisher.take_ended()
    (refused,) = bench.sent
    assert isinstance(refused, Refused)
    assert (refused.kind, refused.request_id) == ("CapacityError", "r1")
    assert refused.retry_after_s is not None
    assert refused.retry_after_s >= 1
    assert "3 others wait" in refused.message
    assert bench.table.by_key(1) is None


@pytest.mark.parametrize(
    "fields", [{"deadline_us": 1}, {"cached_tokens": 0}], ids=["own limit", "it ran already"]
)
def test_a_requests_own_timeout_stays_one(bench: Bench, fields: dict[str, Any]) -> None:
    bench.add(1, **fields)
    bench.now = commit([(1, -1, "timeout", -1)])
    bench.publisher.take_ended()
    (message,) = bench.sent
    assert isinstance(message, TokensOut)
    assert message.deltas[0].finish_reason == "timeout"
