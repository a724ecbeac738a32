"""Recorded traces, when $TRACES names their folder: hits against the ideal, LRU, and the goals."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

import pytest

from tokenspeed.scheduler.policies import LruPolicy, ReturnTimePolicy
from tokenspeed.simulator import SimulatorSettings, Trace, ideal_hit_rate, read_trace, replay

FOLDER = os.environ.get("TRACES", "")
AGENTIC, MOONCAKE = "agentic_coding_355a.jsonl.gz", "mooncake_conversation.jsonl.gz"
M = 1_000_000

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not FOLDER, reason="$TRACES names no folder of recorded traces"),
]


@cache
def trace(name: str) -> Trace:
    return read_trace(Path(FOLDER) / name)


def hit_rate(name: str, policy: LruPolicy | ReturnTimePolicy, pool_tokens: int) -> float:
    settings = SimulatorSettings(pool_tokens=pool_tokens)
    return replay(trace(name), settings, policy, step_model=None).hit_rate


@pytest.mark.parametrize("name", [AGENTIC, MOONCAKE])
def test_unlimited_memory_makes_every_hit(name: str) -> None:
    ideal = ideal_hit_rate(trace(name), pool_tokens=None, num_places=64, max_pause_s=60.0)
    assert hit_rate(name, ReturnTimePolicy(), 0) == pytest.approx(ideal, abs=0.005)


@pytest.mark.parametrize(
    ("pool_tokens", "least"), [(8 * M, 0.855), (4 * M, 0.535), (2 * M, 0.320), (1 * M, 0.160)]
)
def test_the_default_reaches_the_goals_on_agents(pool_tokens: int, least: float) -> None:
    assert hit_rate(AGENTIC, ReturnTimePolicy(), pool_tokens) >= least


@pytest.mark.parametrize(
    ("pool_tokens", "lru"), [(8 * M, 0.271), (4 * M, 0.185), (2 * M, 0.089), (1 * M, 0.056)]
)
def test_the_default_does_not_fall_below_lru_on_chat(pool_tokens: int, lru: float) -> None:
    assert hit_rate(MOONCAKE, ReturnTimePolicy(), pool_tokens) >= lru - 0.005
