"""`plugins diff` says what two plans chose differently, from any of the files that hold one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.offers import attention, kernel

from tokenspeed.cli.main import run as main
from tokenspeed.kernels import select
from tokenspeed.plugins import BindingPlan

CPU = {"device": "cpu", "dtype": "float32"}
OFFERS = [attention("a/paged"), attention("b/other")]


def plan_file(path: Path, pin: str = "auto", *, key: str = "") -> str:
    plan = BindingPlan.of(
        {"attention.full": select("attention.full", OFFERS, CPU, pin=pin)},
        [select("norm.rms", [kernel("a/x")], CPU)],
    ).to_json()
    path.write_text(json.dumps({key: plan} if key else plan))
    return str(path)


def test_equal_plans_are_no_difference(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = plan_file(tmp_path / "a.json"), plan_file(tmp_path / "b.json", key="plan")
    assert main(["plugins", "diff", a, b]) == 0
    assert capsys.readouterr().out == "no difference\n"


def test_each_difference_names_the_choice_and_both_sides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = plan_file(tmp_path / "a.json"), plan_file(tmp_path / "b.json", "b/other")
    assert main(["plugins", "diff", a, b, "--json"]) == 1
    found: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert {item["choice"] for item in found} == {"attention.full"}
    assert {"choice": "attention.full", "what": "winner", "a": "a/paged", "b": "b/other"} in found
    assert main(["plugins", "diff", a, b]) == 1
    assert "attention.full  winner" in capsys.readouterr().out


def test_single_records_are_compared_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, traits in (("a", CPU), ("b", {**CPU, "window": 0})):
        record = select("norm.rms", [kernel("a/x")], traits).record
        (tmp_path / f"{name}.json").write_text(json.dumps(record))
    files = [str(tmp_path / f"{name}.json") for name in "ab"]
    assert main(["plugins", "diff", *files]) == 0


@pytest.mark.parametrize("text", ["[]", "{}", '{"slots": 1, "kernels": []}', "{"])
def test_a_file_that_holds_no_plan_is_refused(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.json").write_text(text)
    file = str(tmp_path / "a.json")
    assert main(["plugins", "diff", file, file]) == 2
    assert "a.json" in capsys.readouterr().err
