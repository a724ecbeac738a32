"""What the host does for a decode step whose device work is free: plan, launch, collect, commit."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING

import pytest
from tests.support import engine_parts
from tests.support.engine_parts import Job, SimulatedParts, build_parts
from tests.support.tiny_checkpoints import make_checkpoint

from tokenspeed.executor.graphs import DecodeGraphs
from tokenspeed.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tokenspeed.contracts.device import DeviceGraph
    from tokenspeed.contracts.step import StepPlan, StepResult

ROWS = 64
LIMIT_US = 1500.0
"""Some ten times what it takes: a machine of tests is shared."""


class _NoWork:
    """DeviceGraph of work that takes no time: its results are what lay there."""

    num_bytes = 0

    def replay(self) -> None:
        """Do nothing."""


def _run_once(work: Callable[[], None]) -> DeviceGraph:
    work()
    return _NoWork()


def test_the_host_s_share_of_a_decode_step_is_small(
    checkpoint_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_parts, "record", _run_once)
    path = make_checkpoint("llama", checkpoint_folder)
    parts = build_parts(
        path, num_blocks=4 * ROWS, max_running=ROWS, max_step_tokens=4 * ROWS,
        simulated=SimulatedParts((ROWS,)),
    )  # fmt: skip
    executor, steps_s = parts.executor, []
    launch, collect = executor.launch, executor.collect

    def timed(plan: StepPlan) -> None:
        started_s = time.perf_counter()
        launch(plan)
        steps_s.append(time.perf_counter() - started_s)

    def timed_collect() -> StepResult:
        started_s = time.perf_counter()
        result = collect()
        steps_s[-1] += time.perf_counter() - started_s
        return result

    monkeypatch.setattr(executor, "launch", timed)
    monkeypatch.setattr(executor, "collect", timed_collect)
    params = SamplingParams(temperature=0.0, max_tokens=24)
    parts.run([Job([5, 6, 7 + index], params) for index in range(ROWS)])
    graphs = executor._graphs
    assert isinstance(graphs, DecodeGraphs)
    assert graphs.counts.replayed >= 22
    step_us = median(steps_s) * 1e6
    print(f"host time of a decode step of {ROWS} rows: {step_us:.0f} us in the executor")
    assert step_us < LIMIT_US
