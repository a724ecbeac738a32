"""Check 2: the same plugin, merely installed, is not imported and is listed as "not enabled"."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.plugin_wheels import WheelFolder

BODY = """
open({marker!r}, "w").close()

def find():
    raise RuntimeError("the card does not answer")

plugin = None
"""
START = """
import sys
from tokenspeed.plugins import load_plugins

registry = load_plugins(("auto",), role="engine")
(status,) = (item for item in registry.plugins if item.id == "acme")
print(status.state, "|", status.reason, "|", {package!r} in sys.modules)
"""


def test_02_merely_installed(wheels: WheelFolder, tmp_path: Path) -> None:
    marker = tmp_path / "imported"
    package = wheels.install("acme", BODY.format(marker=str(marker)), probe='"PACKAGE:find"')
    listing = wheels.tokenspeed("plugins", "list", "--json")
    assert listing.returncode == 0, listing.stderr
    (entry,) = (item for item in json.loads(listing.stdout) if item["id"] == "acme")
    assert (entry["state"], entry["problem"]) == ("not enabled", "")
    assert "not enabled" in wheels.tokenspeed("plugins", "list").stdout
    start = wheels.python(START.format(package=package))
    assert start.stdout == "not enabled | load it with --plugins acme | False\n", start.stderr
    assert not marker.exists()
