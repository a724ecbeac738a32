"""`tokenspeed top` where nobody looks at a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenspeed.cli.top_screen import Screen

if TYPE_CHECKING:
    import pytest


def test_a_pipe_is_told_once_that_the_server_is_away(capsys: pytest.CaptureFixture[str]) -> None:
    with Screen("http://x", is_live=True) as screen:
        for problem in ("refused", "refused", "timed out", "timed out", "refused"):
            screen.show(None, problem)
    assert capsys.readouterr().out.split("\n") == ["refused", "timed out", "refused", ""]
