"""Recorded runs: written as they happen, repeated plan by plan, refused when damaged."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenspeed.errors import ConfigError
from tokenspeed.scheduler import Scheduler
from tokenspeed.scheduler.record import RecordWriter, check_record, read_record, scheduler_config

SETTINGS: dict[str, Any] = {
    "block_tokens": 16,
    "groups": [{"name": "full"}],
    "num_physical_blocks": 12,
    "max_running": 4,
    "max_waiting": 16,
    "max_step_tokens": 64,
    "max_context_tokens": 160,
    "record_events": True,
}


def record_run(path: Path) -> int:
    """Run ten requests, more than fit at once; returns the number of plans."""
    scheduler = Scheduler(scheduler_config(SETTINGS))
    writer = RecordWriter(path, SETTINGS)
    plans = 0
    for key in range(1, 11):
        prompt = np.arange(key % 3 * 100, key % 3 * 100 + 60, dtype=np.int32)
        scheduler.submit(key, prompt, max_new_tokens=5, gap_us=key * 1000, now_us=key)
    while scheduler.has_work():
        plan = scheduler.plan(now_us=100 + plans)
        assert plan is not None
        tokens = np.where(plan.output_index >= 0, 7, -1).astype(np.int32)
        scheduler.commit(plan.step_id, tokens, now_us=100 + plans)
        plans += 1
        writer.append(scheduler)
    return plans


def test_a_run_is_repeated_plan_by_plan(tmp_path: Path) -> None:
    path = tmp_path / "run"
    plans = record_run(path)
    record = read_record(path)
    assert record is not None
    repeated, stats = record.replay()
    assert repeated == plans
    assert stats["finished"] == 10


def test_a_run_of_another_configuration_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    record_run(path)
    path.write_bytes(path.read_bytes().replace(b'"max_running": 4', b'"max_running": 1', 1))
    record = read_record(path)
    assert record is not None
    with pytest.raises(ConfigError, match="cannot be repeated"):
        record.replay()


@pytest.mark.parametrize("damage", [b'"scheduler"', b'"scheduled":', b'"a":' + b"[" * 100_000])
def test_a_damaged_head_is_named(tmp_path: Path, damage: bytes) -> None:
    path = tmp_path / "run"
    record_run(path)
    path.write_bytes(path.read_bytes().replace(b'"scheduler":', damage, 1))
    with pytest.raises(ConfigError, match="damaged head"):
        read_record(path)


def test_other_files_are_no_records(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text('{"timestamp": 0}\n')
    assert read_record(path) is None


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nowhere"):
        RecordWriter(tmp_path / "nowhere" / "run", SETTINGS)


def test_a_check_leaves_the_record_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.write_bytes(b"of yesterday")
    check_record(path)
    assert path.read_bytes() == b"of yesterday"


def test_a_disk_that_is_full_at_the_start_is_named() -> None:
    with pytest.raises(ConfigError, match="No space left"):
        RecordWriter(Path("/dev/full"), SETTINGS)


def test_a_disk_that_fills_up_ends_the_record_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    writes = iter((os.write, os.write))

    def write(file: int, data: memoryview) -> int:
        kept = next(writes, None)
        if kept is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return kept(file, data)

    monkeypatch.setattr(os, "write", write)
    assert record_run(tmp_path / "run") > 2
    assert [line.message.count("ends here") for line in caplog.records] == [1]
