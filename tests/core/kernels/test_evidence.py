"""Measured times: complete ones decide before the band; incomplete or damaged ones do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.offers import kernel

from tokenspeed.contracts.kernel import Band
from tokenspeed.errors import CapabilityError
from tokenspeed.kernels import select
from tokenspeed.kernels.evidence import EvidenceFile, ModelEvidence, request_key
from tokenspeed.kernels.rules import parse_forced

CPU = {"device": "cpu", "dtype": "float32"}
OFFERS = [
    kernel("a/plain"),
    kernel("b/native", band=Band.PORTABLE),
    kernel("c/tuned", band=Band.PERFORMANT),
]


def chosen(evidence: dict[str, float], **options: Any) -> dict[str, Any]:
    return dict(select("op", OFFERS, CPU, evidence=evidence, **options).record)


def test_the_fastest_wins_when_all_finalists_above_reference_were_measured() -> None:
    record = chosen({"b/native": 2e-6, "c/tuned": 3e-6})
    assert record["winner"] == "b/native"
    assert record["evidence"] == {"used": True, "note": ""}
    told = {entry["offer"]: entry["reason"] for entry in record["candidates"]}
    assert told == {
        "b/native": "best of 3 that pass, measured 2.0 us",
        "c/tuned": "measured 3.0 us > 2.0 us",
        "a/plain": "not measured, others were",
    }


def test_a_reference_kernel_that_was_measured_fastest_wins_too() -> None:
    record = chosen({"a/plain": 1e-6, "b/native": 2e-6, "c/tuned": 3e-6})
    assert record["winner"] == "a/plain"


@pytest.mark.parametrize(
    ("evidence", "note"),
    [
        ({}, "nothing was measured"),
        ({"b/native": 1e-6}, "not measured: c/tuned"),
        ({"a/plain": 1e-6}, "not measured: b/native, c/tuned"),
    ],
)
def test_incomplete_evidence_does_not_count_and_the_record_says_why(
    evidence: dict[str, float], note: str
) -> None:
    record = chosen(evidence)
    assert record["winner"] == "c/tuned"
    assert record["evidence"] == {"used": False, "note": note}
    by_offer = {entry["offer"]: entry["measured_us"] for entry in record["candidates"]}
    assert {pin for pin, time_us in by_offer.items() if time_us is not None} == set(evidence)


def test_times_never_beat_a_pin_or_the_filter() -> None:
    times = {"a/plain": 1e-6, "b/native": 2e-6, "c/tuned": 3e-6}
    assert chosen(times, pin="c/tuned")["winner"] == "c/tuned"
    loose = kernel("d/loose", band=Band.PORTABLE, deterministic=False)
    decision = select(
        "op", [*OFFERS, loose], CPU, evidence={**times, "d/loose": 1e-9}, objective="determinism"
    )
    assert decision.winner.pin == "a/plain"


def test_equal_times_leave_the_rest_of_the_order_in_force() -> None:
    assert chosen({"b/native": 2e-6, "c/tuned": 2e-6})["winner"] == "c/tuned"


def test_a_model_gets_the_sum_over_its_own_shapes(tmp_path: Path) -> None:
    file = EvidenceFile({"device": "cpu"}, tmp_path)
    file.shapes = {"op|1": {"a/x": 1.0, "b/y": 2.0}, "op|2": {"a/x": 10.0}}
    file.models = {"m": {request_key("op", CPU): [("op|1", 3.0), ("op|2", 0.5)]}}
    file.save()
    again = EvidenceFile({"device": "cpu"}, tmp_path)
    evidence = ModelEvidence(again, "m")
    assert evidence.seconds("op", CPU) == {"a/x": 8.0}  # b/y lacks a shape: not measured
    assert evidence.seconds("op", {**CPU, "sinks": False}) == {"a/x": 8.0}
    assert evidence.seconds("op", {**CPU, "sinks": True}) == {}
    assert ModelEvidence(again, "another").seconds("op", CPU) == {}
    assert EvidenceFile({"device": "other"}, tmp_path).models == {}


def test_who_failed_on_one_of_a_models_shapes_is_refused_with_what_it_raised(
    tmp_path: Path,
) -> None:
    file = EvidenceFile({"device": "cpu"}, tmp_path)
    file.shapes = {"op|1": {"b/native": 1.0, "c/tuned": 0.1}, "op|2": {"b/native": 1.0}}
    file.failures = {"op|2": {"c/tuned": "RuntimeError: no such tile"}, "op|3": {"b/native": "x"}}
    file.models = {"m": {request_key("op", CPU): [("op|1", 1.0), ("op|2", 1.0)]}}
    assert file.save() == ""
    evidence = ModelEvidence(EvidenceFile({"device": "cpu"}, tmp_path), "m")
    failures = evidence.failures("op", CPU)
    assert failures == {"c/tuned": "RuntimeError: no such tile"}
    record = chosen(evidence.seconds("op", CPU), failures=failures)
    assert record["winner"] == "b/native"
    assert record["evidence"]["used"]
    told = {entry["offer"]: entry for entry in record["candidates"]}
    assert told["c/tuned"]["verdict"] == "refused"
    assert "RuntimeError: no such tile" in told["c/tuned"]["reason"]
    with pytest.raises(CapabilityError, match=r"--unsafe-force timed\.failed"):
        chosen({}, failures=failures, pin="c/tuned")
    forced = chosen({}, failures=failures, pin="c/tuned", forced=parse_forced(["timed.failed"]))
    assert forced["winner"] == "c/tuned"
    assert forced["forced"] == ["timed.failed"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"facts": {"device": "x"}, "shapes": {}}'])
def test_a_damaged_file_or_one_of_other_facts_is_no_evidence(tmp_path: Path, text: str) -> None:
    file = EvidenceFile({"device": "cpu"}, tmp_path)
    file.path.write_text(text)
    assert EvidenceFile({"device": "cpu"}, tmp_path).shapes == {}


GOOD = {
    "shapes": {"op|1": {"a/x": 1.0}},
    "failures": {},
    "models": {"m": {"r": [["op|1", 1.0]]}},
}


@pytest.mark.parametrize(
    "spoilt",
    [
        {"shapes": 3},
        {"shapes": {"op|1": []}},
        {"shapes": {"op|1": {"a/x": "fast"}}},
        {"shapes": {"op|1": {"a/x": -1.0}}},
        {"shapes": {"op|1": {"a/x": float("nan")}}},
        {"shapes": {"op|1": {"a/x": None}}},
        {"failures": []},
        {"failures": {"op|1": "broken"}},
        {"models": []},
        {"models": {"m": 3}},
        {"models": {"m": {"r": [["op|1"]]}}},
        {"models": {"m": {"r": [["op|1", -1.0]]}}},
        {"models": {"m": {"r": 3}}},
    ],
)
def test_a_file_of_the_right_facts_and_wrong_values_chooses_no_kernel(
    tmp_path: Path, spoilt: dict[str, Any]
) -> None:
    file = EvidenceFile({"device": "cpu"}, tmp_path)
    for data, shapes in ((GOOD, GOOD["shapes"]), (GOOD | spoilt, {})):
        file.path.write_text(json.dumps({"facts": file.facts, **data}))
        assert EvidenceFile({"device": "cpu"}, tmp_path).shapes == shapes


def test_deeply_nested_and_binary_files_are_no_evidence(tmp_path: Path) -> None:
    file = EvidenceFile({"device": "cpu"}, tmp_path)
    for data in (b"[" * 100_000, b"\xff\xfe\0"):
        file.path.write_bytes(data)
        assert EvidenceFile({"device": "cpu"}, tmp_path).shapes == {}


def test_two_starts_that_measure_at_once_keep_the_times_of_both(tmp_path: Path) -> None:
    files = [EvidenceFile({"device": "cpu"}, tmp_path) for _ in range(2)]
    for number, file in enumerate(files):
        file.shapes = {"op|1": {f"a/{number}": 1.0}, f"op|{number + 2}": {"a/x": 2.0}}
        file.models = {f"m{number}": {}}
        assert file.save() == ""
    again = EvidenceFile({"device": "cpu"}, tmp_path)
    assert again.shapes["op|1"] == {"a/0": 1.0, "a/1": 1.0}
    assert set(again.shapes) == {"op|1", "op|2", "op|3"}
    assert set(again.models) == {"m0", "m1"}


def test_a_folder_that_cannot_be_written_is_said_and_nothing_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    assert "Not a directory" in EvidenceFile({}, tmp_path / "file" / "tuning").save()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    assert EvidenceFile({}, tmp_path / "tuning").save() == "disk full"
    assert list((tmp_path / "tuning").iterdir()) == []
