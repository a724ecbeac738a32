"""/metrics: the engine's figures, those of the tiers included."""

from __future__ import annotations

from tokenspeed.engine.messages import EngineStats
from tokenspeed.server.metrics import Metrics


def test_tiers_and_the_latency_floor_are_shown() -> None:
    stats = EngineStats(
        epoch=1, evictions=7, loaded_tokens=1408, tier_failures=2, tps_floor_violated=3,
        host_blocks_total=35, host_blocks_free=24, store_records=11,
    )  # fmt: skip
    lines = Metrics(lambda: stats).render().decode().splitlines()
    for line in (
        "tokenspeed_evictions_total 7.0",
        "tokenspeed_loaded_tokens_total 1408.0",
        "tokenspeed_tier_failures_total 2.0",
        "tokenspeed_tps_floor_violated_total 3.0",
        "tokenspeed_host_blocks_total 35.0",
        "tokenspeed_host_blocks_free 24.0",
        "tokenspeed_store_records 11.0",
    ):
        assert line in lines


def test_drafts_and_a_failing_speculator_are_shown() -> None:
    stats = EngineStats(
        epoch=1, drafted_tokens=50, accepted_tokens=40, speculator_failures=3, speculator_detached=1
    )
    lines = Metrics(lambda: stats).render().decode().splitlines()
    for line in (
        "tokenspeed_drafted_tokens_total 50.0",
        "tokenspeed_accepted_tokens_total 40.0",
        "tokenspeed_speculator_failures_total 3.0",
        "tokenspeed_speculator_detached 1.0",
    ):
        assert line in lines
