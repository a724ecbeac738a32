"""Check 21: a misspelled plugin setting gets the near name before any process starts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.plugin_wheels import WheelFolder

TAIL = '[config.flush]\ntype = "boolean"\ndefault = false'


def test_21_misspelled_setting(wheels: WheelFolder, unread_model: Path) -> None:
    wheels.install("acme", "raise RuntimeError('imported')", tail=TAIL)
    processes = wheels.record_processes()
    flags = ("--plugins", "acme", "--plugin-config", "acme.flus=1")
    result = wheels.tokenspeed("serve", str(unread_model), *flags, timeout_s=120)
    assert result.returncode == 2, result.stderr
    assert "no key 'flus'; did you mean 'flush'?" in result.stderr
    assert len(processes.read_text().splitlines()) == 1
