"""docs/plugins/slots.md is what the slots and their interfaces say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from tests.support.source_tree import ROOT

from tokenspeed.plugins.slots import SLOTS
from tokenspeed_sdk import Offer
from tokenspeed_sdk.conformance import construct
from tokenspeed_sdk.conformance.interfaces import LOAD_KEYWORDS
from tokenspeed_sdk.conformance.subject import SubjectOffer
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


class Host:
    """A device of which only torch's name is asked."""

    facts: Any = None

    def torch_device(self) -> str:
        return "cpu"


@pytest.mark.parametrize("slot", construct.ARGUMENTS)
def test_the_kit_builds_offers_with_the_keywords_of_the_page(slot: str) -> None:
    requires = dict.fromkeys(
        ("dtype", "head_dim", "block_tokens", "num_experts", "top_k", "hidden_size"), ("*",)
    )
    requires |= {"expert_features": ("*",)}
    offer = SubjectOffer(slot, Offer(slot, "x", dict, requires=requires))
    host: Any = Host()
    given = construct.ARGUMENTS[slot](offer, host, {}, Path())
    assert list(given) == list(LOAD_KEYWORDS[slot])


def test_what_is_exported_beside_an_interface_stands_on_the_page() -> None:
    written = (ROOT / "docs" / "plugins" / "slots.md").read_text(encoding="utf-8")
    for name in ("AttentionBatch", "KVView", "CacheDemand", "SamplingBatch", "StoreDone"):
        assert f"\nclass {name}:\n" in written
