"""Errors about plugins: the id at the end, the exit code, and what lay behind them."""

from __future__ import annotations

import pytest

from tokenspeed.errors import CapabilityError, PluginError, cause_lines, reason_of


def chained() -> PluginError:
    try:
        try:
            raise OSError("no such device")
        except OSError as error:
            raise ValueError("no card") from error
    except ValueError as error:
        inner = PluginError("hook x raised ValueError: no card", id="hook-raised")
        inner.__cause__ = error
    outer = PluginError("plugin acme failed: hook x raised ValueError: no card", id="hook-raised")
    outer.__cause__ = inner
    return outer


def test_the_text_ends_with_the_id_and_the_message_does_not() -> None:
    error = PluginError("no card; plug one in", id="device-not-found")
    assert str(error) == "no card; plug one in [device-not-found]"
    assert error.message == "no card; plug one in"
    assert str(CapabilityError("none passes")) == "none passes [no-candidate]"


@pytest.mark.parametrize(
    ("diagnostic", "exit_code"),
    [("plugin-forbidden", 3), ("probe-crashed", 4), ("acme-is-asleep", 4)],
)
def test_the_exit_code_is_the_diagnostics(diagnostic: str, exit_code: int) -> None:
    assert PluginError("x", id=diagnostic).exit_code == exit_code
    assert PluginError("x", id=diagnostic, exit_code=7).exit_code == 7


def test_causes_are_told_once_and_the_nearest_first() -> None:
    lines = cause_lines(chained())
    assert [line.partition(" (")[0] for line in lines] == [
        "ValueError: no card",
        "OSError: no such device",
    ]
    assert "test_errors.py:" in lines[0]


def test_causes_of_another_process_follow() -> None:
    error = PluginError("x", id="probe-raised")
    error.causes = ("RuntimeError: far away (a/b.py:1)",)
    outer = PluginError("plugin: x", id="probe-raised")
    outer.__cause__ = error
    assert cause_lines(outer) == ("RuntimeError: far away (a/b.py:1)",)
    assert cause_lines(PluginError("x")) == ()


def test_the_reason_of_a_file_error_does_not_repeat_the_file() -> None:
    with pytest.raises(FileNotFoundError) as caught:
        open("/nowhere/at-all")  # noqa: SIM115
    assert reason_of(caught.value) == "No such file or directory"
    assert reason_of(OSError("the wheel came off")) == "the wheel came off"
    assert reason_of(ValueError("not a number")) == "not a number"
