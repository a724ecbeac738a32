"""Check 4: two distributions with one id, a stale egg-info too: an error with both paths."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.support.plugin_wheels import write_metadata

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.plugin_wheels import WheelFolder


@pytest.mark.parametrize("twin", ["another wheel", "stale egg-info", "egg-info elsewhere"])
def test_04_two_distributions_one_id(
    wheels: WheelFolder, unread_model: Path, tmp_path: Path, twin: str
) -> None:
    package = wheels.install("acme", "raise RuntimeError('imported')")
    first = wheels.folder / "fake_acme-1.2.3.dist-info"
    if twin == "another wheel":
        wheels.install("acme", distribution="acme-again", version="7.0")
        second = wheels.folder / "acme_again-7.0.dist-info"
    else:
        elsewhere = tmp_path / "old" if twin == "egg-info elsewhere" else wheels.folder
        entry = f"acme = {package}:plugin"
        second = write_metadata(elsewhere, "fake-acme", "1.2.3", entry, egg=True)
        wheels.at_startup(f"import sys; sys.path.append({str(elsewhere)!r})")
    result = wheels.tokenspeed("serve", str(unread_model), "--plugins", "acme", timeout_s=120)
    assert result.returncode == 4, result.stderr
    assert str(first) in result.stderr
    assert str(second) in result.stderr
    assert "[plugin-duplicate]" in result.stderr
    listing = wheels.tokenspeed("plugins", "list")
    assert listing.returncode == 1
    assert str(first) in listing.stdout
    assert str(second) in listing.stdout
