"""A file that is not there: its path stands in the error once, with the reason and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tokenspeed.cli.main import run

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    "command",
    [
        ("serve", "--config", "FILE"),
        ("serve", "--plugins-lock", "FILE"),
        ("serve", "--api-keys-file", "FILE"),
        ("generate", "--prompt", "x", "--config", "FILE"),
        ("plugins", "verify", "FILE"),
        ("plugins", "lock", "--output", "FILE/x"),
        ("plugins", "diff", "FILE", "FILE"),
        ("plugins", "explain", ".", "--device", "FILE.json"),
        ("plugins", "validate", "FILE"),
        ("plugins", "test", "sdk", "--level", "C0", "--waivers", "FILE"),
        ("simulate", "FILE"),
        ("simulate", "--generate", "agentic", "--total", "1", "--write", "FILE/x"),
    ],
)
def test_the_path_is_named_once(
    command: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    code = run([word.replace("FILE", str(missing)) for word in command])
    told = capsys.readouterr().err.splitlines()[0]
    assert code in (2, 3), told
    assert told.count(str(missing)) == 1
    assert "Errno" not in told
    assert ";" in told
