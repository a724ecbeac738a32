"""The flight record names who was in flight, and nobody else."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tokenspeed.engine.flight_record import (
    NUM_ENTERING,
    Doing,
    FlightRecord,
    read_doing,
    read_suspects,
)


def plan(step_id: int, slots: list[int], output_index: list[int]) -> Any:
    """The fields of a StepPlan that the record reads."""
    return SimpleNamespace(
        step_id=step_id,
        num_rows=len(slots),
        slots=np.array(slots, dtype=np.int32),
        output_index=np.array(output_index, dtype=np.int32),
    )


def test_rows_of_an_uncommitted_step_are_suspects_with_their_output_index(tmp_path: Path) -> None:
    record = FlightRecord(tmp_path / "record", max_running=4)
    record.name_slot(1, "one")
    record.name_slot(3, "three")
    record.begin(plan(7, [3, 1], [5, -1]))
    assert read_suspects(tmp_path / "record") == {"three": 5, "one": -1}


def test_a_committed_step_names_nobody(tmp_path: Path) -> None:
    record = FlightRecord(tmp_path / "record", max_running=4)
    record.name_slot(0, "gone")
    record.begin(plan(1, [0], [0]))
    record.end(1)
    assert read_suspects(tmp_path / "record") == {}
    assert read_doing(tmp_path / "record").step_s == 0.0


def test_two_overlapping_steps_are_both_recorded_and_the_later_position_counts(
    tmp_path: Path,
) -> None:
    record = FlightRecord(tmp_path / "record", max_running=2)
    record.name_slot(0, "a")
    record.name_slot(1, "b")
    record.begin(plan(1, [0, 1], [3, 0]))
    record.begin(plan(2, [0], [4]))
    assert read_suspects(tmp_path / "record") == {"a": 4, "b": 0}
    record.end(1)
    assert read_suspects(tmp_path / "record") == {"a": 4}


def test_the_longest_request_id_is_kept_whole(tmp_path: Path) -> None:
    record = FlightRecord(tmp_path / "record", max_running=1)
    record.name_slot(0, "x" * 63)
    record.begin(plan(0, [0], [0]))
    assert read_suspects(tmp_path / "record") == {"x" * 63: 0}


def test_a_missing_or_foreign_file_names_nobody(tmp_path: Path) -> None:
    assert read_suspects(tmp_path / "none") == {}
    (tmp_path / "foreign").write_bytes(b"\1" * 500)
    assert read_suspects(tmp_path / "foreign") == {}


def test_a_running_step_has_an_age(tmp_path: Path) -> None:
    record = FlightRecord(tmp_path / "record", max_running=1)
    record.name_slot(0, "a")
    record.begin(plan(0, [0], [0]))
    assert 0.0 < read_doing(tmp_path / "record").step_s < 60.0


def test_a_step_that_is_launched_runs_on_when_the_one_before_it_is_committed(
    tmp_path: Path,
) -> None:
    record = FlightRecord(tmp_path / "record", max_running=1)
    record.name_slot(0, "a")
    record.begin(plan(1, [0], [0]))
    record.begin(plan(2, [0], [1]))
    record.end(1)
    assert 0.0 < read_doing(tmp_path / "record").step_s < 60.0
    record.end(2)
    assert read_doing(tmp_path / "record").step_s == 0.0


def test_work_has_an_age_from_its_arrival_or_the_last_completed_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic_ns", lambda: int(now_s * 1e9))
    path = tmp_path / "record"
    record = FlightRecord(path, max_running=1)
    record.enter_turn()
    now_s = 103.0
    assert read_doing(path) == Doing(0.0, 3.0, 3.0)
    record.leave_turn(has_work=True)
    now_s = 105.0
    assert read_doing(path) == Doing(0.0, 5.0, 0.0)
    record.enter_turn()
    record.begin(plan(1, [0], [0]))
    now_s = 106.0
    assert read_doing(path) == Doing(1.0, 6.0, 1.0)
    record.end(1)
    record.leave_turn(has_work=True)
    now_s = 110.0
    assert read_doing(path) == Doing(0.0, 4.0, 0.0)
    record.enter_turn()
    record.leave_turn(has_work=False)
    assert read_doing(path) == Doing()


def test_a_missing_record_says_that_nothing_is_done(tmp_path: Path) -> None:
    assert read_doing(tmp_path / "none") == Doing()
    (tmp_path / "short").write_bytes(b"\1" * 39)
    assert read_doing(tmp_path / "short") == Doing()


def test_who_is_being_taken_in_is_a_suspect_too(tmp_path: Path) -> None:
    record = FlightRecord(tmp_path / "record", max_running=2)
    record.name_slot(0, "runs")
    record.begin(plan(1, [0], [4]))
    for name in ("waits", "enters", "runs"):
        record.enter(name)
    record.leave("enters")
    record.leave("unknown")
    assert read_suspects(tmp_path / "record") == {"runs": 4, "waits": -1}
    for index in range(2 * NUM_ENTERING):
        record.enter(f"r{index}")
    assert len(read_suspects(tmp_path / "record")) == NUM_ENTERING
    for index in range(2 * NUM_ENTERING):
        record.leave(f"r{index}")
    record.enter("x" * 63)
    assert set(read_suspects(tmp_path / "record")) == {"runs", "waits", "x" * 63}
