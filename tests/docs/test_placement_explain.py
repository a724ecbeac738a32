"""What docs/placement.md shows of `tokenspeed models explain` is what it prints."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from tests.support.source_tree import ROOT
from tests.support.traced_models import PUBLISHED

from tokenspeed.cli.main import run

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PAGE = ROOT / "docs" / "placement.md"


def test_the_example_is_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shown = re.search(
        r"<!-- explain (\S+) (.*) -->\n```\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.S
    )
    assert shown is not None
    name, flags, block = shown.groups()
    (tmp_path / name).mkdir()
    (tmp_path / name / "config.json").write_text(json.dumps(PUBLISHED[name]))
    monkeypatch.chdir(tmp_path)
    assert run(["models", "explain", name, *flags.split()]) == 0
    printed = iter(capsys.readouterr().out.splitlines())
    for line in block.splitlines():
        if line.strip() != "...":
            assert line in printed, f"{line!r} is not printed there"
