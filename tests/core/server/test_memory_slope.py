"""20,000 requests, no two alike, leave less than 1 KB each in either process."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
NUM_REQUESTS = 20_000
MAX_BYTES = 1024


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_requests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(ROOT))
    slope: Any = importlib.import_module("benchmarks.serving.memory_slope")
    memories, statuses = slope.measure(tmp_path, NUM_REQUESTS, 24)
    assert sum(statuses.values()) == NUM_REQUESTS
    assert statuses[400] == NUM_REQUESTS // len(slope.KINDS)
    assert set(statuses) == {200, 400}
    for memory in memories:
        assert memory.slope(warm_share=0.5) < MAX_BYTES, (memory.name, memory.resident)
