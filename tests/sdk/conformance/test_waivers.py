"""Waivers cover what they name until their last day, and never longer than they are needed."""

from __future__ import annotations

import datetime
from typing import TYPE_CHECKING

import pytest

from tokenspeed_sdk import ConfigError
from tokenspeed_sdk.conformance import CheckResult, Report, Waiver, read_waivers
from tokenspeed_sdk.conformance.waivers import with_waivers

if TYPE_CHECKING:
    from pathlib import Path

TODAY = datetime.date(2026, 12, 1)
GOOD = 'check = "C2/x[*]"\nreason = "rounds twice until 5.2"\nexpires = 2027-03-31\n'


def report(*checks: CheckResult) -> Report:
    return Report({"id": "acme", "version": "1.0"}, {"version": "0", "api": "1.0"}, "C2", checks)


FAILED = CheckResult("C2/x[a/b]", "failed", "off by one")
PASSED = CheckResult("C0/y", "passed")


def written(folder: Path, text: str) -> Path:
    path = folder / "waivers.toml"
    path.write_text(text)
    return path


def test_a_waiver_in_force_turns_a_failure_into_a_waived_one(tmp_path: Path) -> None:
    waivers = read_waivers(written(tmp_path, "[[waivers]]\n" + GOOD), TODAY)
    assert waivers == (Waiver("C2/x[*]", "rounds twice until 5.2", "2027-03-31"),)
    assert not report(FAILED, PASSED).ok
    result = with_waivers(report(FAILED, PASSED), waivers, "2027-03-31")
    assert result.ok
    (waived,) = [check for check in result.checks if check.outcome == "waived"]
    assert "rounds twice until 5.2" in waived.message
    assert "off by one" in waived.message


def test_an_expired_waiver_covers_nothing_and_is_a_problem(tmp_path: Path) -> None:
    waivers = read_waivers(written(tmp_path, "[[waivers]]\n" + GOOD), TODAY)
    for checks in ((FAILED, PASSED), (PASSED,)):
        result = with_waivers(report(*checks), waivers, "2027-04-01")
        assert not result.ok
        assert "expired on 2027-03-31" in result.problems[0]


def test_a_waiver_that_is_not_needed_any_more_is_a_problem() -> None:
    repaired = CheckResult("C2/x[a/b]", "passed")
    waiver = Waiver("C2/x[*]", "rounds twice until 5.2", "2027-03-31")
    result = with_waivers(report(repaired), [waiver], "2026-12-01")
    assert "not needed any more" in result.problems[0]
    assert not result.ok
    # A run of fewer levels did not ask for it: that says nothing.
    assert with_waivers(report(PASSED), [waiver], "2026-12-01").ok


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("waivers = 1", "only"),
        ("[[waivers]]\n" + GOOD + 'more = "x"', "keys"),
        ("[[waivers]]\n" + GOOD.replace("C2/x[*]", "x"), "a check's id"),
        ("[[waivers]]\n" + GOOD.replace("rounds twice until 5.2", "later"), "in a sentence"),
        ("[[waivers]]\n" + GOOD.replace("2027-03-31", '"soon"'), "a date is needed"),
        ("[[waivers]]\n" + GOOD.replace("2027-03-31", "2028-03-31"), "366 days"),
        ("[[waivers", "cannot be read"),
        ("x = " + "9" * 5000, "cannot be read"),
        ("x = " + "[" * 3000, "nested too deeply"),
    ],
)
def test_a_bad_file_is_refused(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_waivers(written(tmp_path, text), TODAY)


def test_a_report_with_nothing_passed_is_not_ok_and_tells_what_failed() -> None:
    assert not report().ok
    failed = report(FAILED, PASSED)
    assert "failed C2/x[a/b]: off by one" in failed.text()
    assert "1 passed, 1 failed, 0 waived, 0 skipped" in failed.text()
    page = failed.to_markdown()
    assert page.startswith("# Conformance of acme 1.0: FAILED\n")
    assert "| C2 | 0 | 1 | 0 | 0 |" in page
    assert '"ok": false' in failed.to_json()
