"""The kit's own process: what it cannot run is a problem of the report, not a pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.plugin_wheels import WheelFolder

from tokenspeed.cli.main import run as main
from tokenspeed_sdk import ConfigError
from tokenspeed_sdk.conformance import run_conformance

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelFolder:
    folder = WheelFolder(tmp_path)
    monkeypatch.setenv("PYTHONPATH", folder.environ()["PYTHONPATH"])
    return folder


def test_a_plugin_that_ends_the_kits_process_is_a_problem(wheels: WheelFolder) -> None:
    wheels.install("acme", "import os\nos._exit(7)\n")
    report = run_conformance("acme", level="C1", only="C1/")
    assert not report.ok
    assert "ended with 7" in report.problems[0]


def test_an_unknown_plugin_is_a_problem_with_the_known_names(wheels: WheelFolder) -> None:
    report = run_conformance("acme", level="C0")
    assert not report.ok
    assert "unknown plugin 'acme'" in report.problems[0]


def test_an_only_that_no_check_has_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"--only is 'nosuch', .* no check of C0, C1; run it"):
        run_conformance("reference", level="C1", only="nosuch")


def test_the_command_refuses_an_unknown_plugin_before_it_starts_a_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plugins", "test", "refernce", "--level", "C0"]) == 4
    told = capsys.readouterr()
    assert "unknown plugin 'refernce'; did you mean 'reference'? [plugin-unknown]" in told.err
    assert told.out == ""


def test_a_check_that_is_skipped_says_why_while_it_runs(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["plugins", "test", "sdk", "--level", "C0", "--only", "the-probe-answers"]) == 1
    assert "skipped C0/the-probe-answers  0.0 s  (" in capfd.readouterr().out


def test_an_unknown_level_is_refused() -> None:
    with pytest.raises(ConfigError, match="C0, C1, C2, C3 are allowed"):
        run_conformance("reference", level="C9")


def test_a_relative_path_to_plugins_is_seen_by_the_child(
    wheels: WheelFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels.install("acme")
    monkeypatch.chdir(wheels.folder.parent)
    monkeypatch.setenv("PYTHONPATH", wheels.folder.name)
    report = run_conformance("acme", level="C0", only="manifest")
    assert [check.outcome for check in report.checks] == ["passed"]
