"""docs/plugins/slots.md is what the slots and their interfaces say."""

from __future__ import annotations

import importlib.util

from tests.support.source_tree import ROOT

from tokenspeed.plugins.slots import SLOTS
from tokenspeed_sdk.scaffold import ABOUT


def test_the_page_is_in_step_with_the_slots() -> None:
    path = ROOT / "docs" / "generate_slots.py"
    spec = importlib.util.spec_from_file_location("generate_slots", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (ROOT / "docs" / "plugins" / "slots.md").read_text(encoding="utf-8")
    assert written == module.page(), "run `python docs/generate_slots.py`"
    for slot in ABOUT:
        assert SLOTS[slot].live
        assert f"\n## {slot}\n" in written
