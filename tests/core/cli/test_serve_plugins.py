"""`tokenspeed serve` refuses wrong plugins before it starts a process or reads a model."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.plugin_wheels import PluginSpace, WheelFolder
from tests.support.scripted import write_scripted_model


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
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == code, result.stderr
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert "no-model" not in result.stderr


def test_a_plugin_for_api_processes_alone_is_loaded_there_and_stops_the_start(
    tmp_path: Path,
) -> None:
    wheels = WheelFolder(tmp_path / "site")
    wheels.install("acme", "raise RuntimeError('imported')", roles='["api"]')
    model = write_scripted_model(tmp_path / "model", script="Hello")
    flags = ("--port", "0", "--plugins", "sdk,acme", "--kv-gib", "0.001")
    result = wheels.tokenspeed("serve", str(model), *flags)
    assert result.returncode == 4, result.stderr
    assert "plugin acme (fake-acme 1.2.3) failed at load" in result.stderr
    assert "  caused by RuntimeError: imported (" in result.stderr
    assert "Traceback" not in result.stderr
