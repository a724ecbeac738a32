"""docs/models.md lists the architectures of the index, no more and no less."""

from __future__ import annotations

import re

from tests.support.source_tree import ROOT

from tokenspeed.builtin import MODELS


def test_the_page_lists_every_architecture() -> None:
    text = (ROOT / "docs" / "models.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", text, re.MULTILINE)) == set(MODELS)
