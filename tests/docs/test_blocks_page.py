"""docs/plugins/model-blocks.md is what the blocks and contracts say."""

from __future__ import annotations

import importlib.util

from tests.support.source_tree import ROOT

from tokenspeed_sdk import layers


def test_the_page_is_in_step_with_the_blocks() -> None:
    path = ROOT / "docs" / "generate_blocks.py"
    spec = importlib.util.spec_from_file_location("generate_blocks", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs" / "plugins" / "model-blocks.md").read_text(encoding="utf-8")
    assert written == module.page(), "run `python docs/generate_blocks.py`"
    for name in layers.__all__:
        assert f"\n### `layers.{name}`\n" in written
    assert "softcap: float = 0.0" in written
