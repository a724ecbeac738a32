"""`tokenspeed serve` refuses wrong plugins before it starts a process or reads a model."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.plugin_wheels import PluginSpace


@pytest.mark.parametrize(
    ("flags", "code", "words"),
    [
        (("--plugins", "acmee"), 4, "did you mean 'acme'"),
        (("--plugins", "acme", "--plugin-config", "acme.flus=1"), 2, "did you mean 'flush'"),
        (("--plugins", "broken"), 4, "needs plugin API >=9"),
    ],
)
def test_a_wrong_plugin_stops_serve_with_its_exit_code(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    flags: tuple[str, ...],
    code: int,
    words: str,
) -> None:
    space = PluginSpace(tmp_path / "site", monkeypatch)
    tail = '[config.flush]\ntype = "boolean"\ndefault = false'
    space.install("acme", "raise RuntimeError('imported')", tail=tail)
    space.install("broken", api='">=9"')
    command = [sys.executable, "-m", "tokenspeed", "serve", str(tmp_path), *flags]
    start = time.monotonic()
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == code, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert "no-model" not in result.stderr
    assert time.monotonic() - start < 20
