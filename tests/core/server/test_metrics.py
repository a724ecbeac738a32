"""/metrics: the engine's figures, those of the tiers included."""

from __future__ import annotations

from tokenspeed.engine.messages import EngineStats, ExpertFigures
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


def test_experts_that_move_are_shown_by_the_layers_of_each_stage() -> None:
    stages = (("0-2", 1.5, 1.25, 9, 2, 7), ("3-5", 2.0, 1.5, 9, 0, 0))
    names = ("layers", "imbalance", "imbalance_mean", "looks", "rebalances", "moved")
    experts = tuple(ExpertFigures(**dict(zip(names, values, strict=True))) for values in stages)
    stats = EngineStats(epoch=1, experts=experts)
    lines = Metrics(lambda: stats).render().decode().splitlines()
    for line in (
        'tokenspeed_experts_imbalance{layers="0-2"} 1.5',
        'tokenspeed_experts_imbalance{layers="3-5"} 2.0',
        'tokenspeed_experts_imbalance_mean{layers="3-5"} 1.5',
        'tokenspeed_experts_looks_total{layers="0-2"} 9.0',
        'tokenspeed_experts_rebalances_total{layers="0-2"} 2.0',
        'tokenspeed_experts_rebalances_total{layers="3-5"} 0.0',
        'tokenspeed_experts_moved_total{layers="0-2"} 7.0',
    ):
        assert line in lines
