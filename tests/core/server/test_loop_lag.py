"""What holds an event loop up is seen, however short it is above the period."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from tokenspeed.server.loop_lag import PERIOD_S, LoopLag
from tokenspeed.server.metrics import Metrics

if TYPE_CHECKING:
    from tests.support.server import ServerProcess

STALL_S = 0.1


def test_a_stall_is_seen_and_the_measuring_goes_on() -> None:
    seen: list[float] = []

    async def scenario() -> None:
        LoopLag(seen.append).keep_measuring()
        await asyncio.sleep(3 * PERIOD_S)
        before = len(seen)
        assert before > 0
        time.sleep(STALL_S)
        await asyncio.sleep(PERIOD_S / 2)
        assert max(seen[before:]) >= STALL_S - PERIOD_S
        behind = len(seen)
        await asyncio.sleep(3 * PERIOD_S)
        assert len(seen) > behind

    asyncio.run(scenario())
    assert min(seen) >= 0


def test_the_measuring_ends_with_its_loop() -> None:
    seen: list[float] = []

    async def scenario() -> None:
        LoopLag(seen.append).keep_measuring()

    asyncio.run(scenario())
    assert seen == []


def test_the_histogram_tells_a_good_loop_from_a_bad_one() -> None:
    metrics = Metrics(lambda: None)
    for lag_s in (0.0005, 0.0005, 0.3):
        metrics.loop_lag.observe(lag_s)
    lines = metrics.render().decode().splitlines()
    assert 'tokenspeed_event_loop_lag_seconds_bucket{le="0.01"} 2.0' in lines
    assert 'tokenspeed_event_loop_lag_seconds_bucket{le="0.5"} 3.0' in lines


def test_a_server_measures_itself(hash_server: ServerProcess) -> None:
    name = "tokenspeed_event_loop_lag_seconds_count"
    before = hash_server.metric(name)
    deadline_s = time.monotonic() + 60
    while hash_server.metric(name) <= before:
        assert time.monotonic() < deadline_s
