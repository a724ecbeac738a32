"""A decode step costs the same at any length of context: time side by side, and counted."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenspeed.scheduler import GroupSpec, Scheduler, SchedulerConfig

SHORT, LONG = 8 * 1024, 512 * 1024
NUM_RUNNING = 16
STEPS = 128
"""Steps of one measurement; each crosses a block's end once per request."""
MOST = 1.3
ROUNDS = 10
"""Measurements whose instructions are counted."""
MIXES = [("full",), ("full", "window", "state")]


class Decoding:
    """Requests that all decode after `context` tokens."""

    def __init__(self, context: int, kinds: tuple[str, ...]) -> None:
        groups = [
            GroupSpec(name=f"{kind}{i}", kind=kind, window=1024 if kind == "window" else 0)
            for i, kind in enumerate(kinds)
        ]
        blocks = (LONG // 128 + 64) * NUM_RUNNING * len(groups)
        self._scheduler = Scheduler(
            SchedulerConfig(
                block_tokens=128,
                groups=groups,
                num_physical_blocks=blocks,
                max_running=NUM_RUNNING,
                max_waiting=NUM_RUNNING,
                max_step_tokens=1 << 20,
                max_context_tokens=context + 8192,
            )
        )
        for request_id in range(NUM_RUNNING):
            prompt = np.arange(request_id, request_id + context, dtype=np.int32)
            self._scheduler.submit(request_id, prompt, max_new_tokens=8000, now_us=0)
        while self._step() < NUM_RUNNING:
            pass

    def _step(self) -> int:
        """Plan and commit; return the rows that decode."""
        plan: Any = self._scheduler.plan(now_us=0)
        tokens = np.where(plan.output_index >= 0, 5, -1).astype(np.int32)
        self._scheduler.commit(plan.step_id, tokens, now_us=0)
        return int(plan.num_decode_rows)

    def measure(self) -> float:
        """Return the seconds that STEPS steps take on this thread's own clock."""
        begin = time.thread_time()
        for _ in range(STEPS):
            self._step()
        return time.thread_time() - begin


def ratio(kinds: tuple[str, ...]) -> float:
    """Return the time of a long context's steps over that of a short one's, least noise first."""
    engines = Decoding(SHORT, kinds), Decoding(LONG, kinds)
    best = [float("inf"), float("inf")]
    for _ in range(12):
        for index, engine in enumerate(engines):
            best[index] = min(best[index], engine.measure())
    return best[1] / best[0]


@pytest.mark.parametrize("kinds", MIXES)
def test_a_decode_step_takes_the_same_time_at_64_times_the_context(kinds: tuple[str, ...]) -> None:
    ratios: list[float] = []
    while len(ratios) < 5 and min(ratios, default=MOST + 1) > MOST:
        ratios.append(ratio(kinds))
    assert min(ratios) <= MOST, f"64 times the context takes {ratios} times as long"


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("valgrind") is None, reason="valgrind counts the instructions")
@pytest.mark.parametrize("kinds", MIXES)
def test_a_decode_step_executes_the_same_instructions(
    kinds: tuple[str, ...], tmp_path: Path
) -> None:
    short, long = (instructions_per_step(context, kinds, tmp_path) for context in (SHORT, LONG))
    assert 0.9 <= long / short <= 1.10, f"{short} instructions a step, {long} at length"


def instructions_per_step(context: int, kinds: tuple[str, ...], folder: Path) -> float:
    """Return the mean instructions of a step, counted between two calls of a marked function."""
    code = f"""
import os
from tests.core.scheduler.test_step_cost import Decoding
mark = os.getloadavg
engine = Decoding({context}, {kinds!r})
engine.measure()
mark()
for _ in range({ROUNDS}):
    engine.measure()
mark()
"""
    tool = ["valgrind", "--tool=callgrind", "--dump-before=getloadavg", f"--log-file={context}.log"]
    tool.append(f"--callgrind-out-file={context}")
    root = Path(__file__).parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root), "PYTHONHASHSEED": "0"}
    subprocess.run([*tool, sys.executable, "-c", code], cwd=folder, env=environment, check=True)
    between_the_marks = (folder / f"{context}.2").read_text()
    found = re.search(r"^(?:summary|totals): (\d+)", between_the_marks, re.MULTILINE)
    assert found is not None
    return int(found.group(1)) / (ROUNDS * STEPS)
