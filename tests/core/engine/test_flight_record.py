"""The flight record names who was in flight, and nobody else."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from tokenspeed.engine.flight_record import FlightRecord, read_suspects, step_age_s


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
    assert step_age_s(tmp_path / "record") == 0.0


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
    assert 0.0 < step_age_s(tmp_path / "record") < 60.0
