"""The policy plugin of docs/plugins/index.md, as a reader would copy it, loads and decides."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from tests.support.plugin_wheels import write_metadata
from tests.support.source_tree import ROOT

from tokenspeed.cli.simulate import policy_maker
from tokenspeed.contracts.policy import Arrival

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

BLOCK = re.compile(r"^```\w+\n# (fair/\S+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def test_the_policy_of_the_page_loads_by_name_and_puts_short_prompts_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs" / "plugins" / "index.md").read_text(encoding="utf-8")
    files = dict(BLOCK.findall(page))
    assert len(files) == 3
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    write_metadata(tmp_path / "fair", "fair", "0.1", "fair = fair:plugin")
    monkeypatch.syspath_prepend(str(tmp_path / "fair"))
    policy = policy_maker("fair", "fair/short_first", experimental="fair")()
    short, long = (policy.keys(Arrival(1, 0, 0, tokens, 0)).queue_key for tokens in (10, 500))
    assert short < long
