"""Check 1: a named plugin that raises in its probe ends the start, with its cause, at once."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.plugin_wheels import WheelFolder

BODY = """
def find():
    try:
        open("/nonexistent/acme0")
    except OSError as error:
        raise RuntimeError("the card does not answer") from error

plugin = None
"""
LIMIT_S = 2.0


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_01_named_plugin_raises_in_probe(wheels: WheelFolder, unread_model: Path) -> None:
    wheels.install("acme", BODY, probe='"PACKAGE:find"')
    processes = wheels.record_processes()
    before_s = cpu_s()
    result = wheels.tokenspeed("serve", str(unread_model), "--plugins", "acme", timeout_s=120)
    # Processor time of launcher and probe: time on the wall depends on who else runs here.
    assert cpu_s() - before_s < LIMIT_S
    assert result.returncode == 4, result.stderr
    assert "plugin acme (fake-acme 1.2.3) failed at probe" in result.stderr
    assert "[probe-raised]" in result.stderr
    causes = [line for line in result.stderr.splitlines() if line.startswith("  caused by ")]
    assert "RuntimeError: the card does not answer (" in causes[0]
    assert "FileNotFoundError" in causes[1]
    assert "/nonexistent/acme0" in causes[1]
    assert "Traceback" not in result.stderr
    assert "engine.process" not in processes.read_text()
