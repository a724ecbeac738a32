"""docs/plugins/traits.md is the vocabulary, and every trait says what it must."""

from __future__ import annotations

import importlib.util

import pytest
from tests.support.source_tree import ROOT

from tokenspeed.contracts.capability import TRAITS, VOCABULARY_VERSION, Compare, Trait

DOCS = ROOT / "docs"
NUMBERS_WITHOUT_NEUTRAL = {
    "head_dim",
    "block_tokens",
    "num_experts",
    "top_k",
    "hidden_size",
    "expert_features",
}


def test_the_page_is_in_step_with_the_vocabulary() -> None:
    spec = importlib.util.spec_from_file_location("generate_traits", DOCS / "generate_traits.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    written = (DOCS / "plugins" / "traits.md").read_text(encoding="utf-8")
    assert written == module.page(), "run `python docs/generate_traits.py`"


@pytest.mark.parametrize("trait", TRAITS.values(), ids=lambda trait: trait.name)
def test_a_trait_has_a_meaning_a_version_and_a_unit_for_its_numbers(trait: Trait) -> None:
    assert trait.meaning
    since = [int(part) for part in trait.since.split(".")]
    assert [1, 0] <= since <= [int(part) for part in VOCABULARY_VERSION.split(".")]
    is_number = isinstance(trait.neutral, int | float) and not isinstance(trait.neutral, bool)
    assert bool(trait.unit) == (is_number or trait.name in NUMBERS_WITHOUT_NEUTRAL)
    if trait.compare in (Compare.AT_MOST, Compare.AT_LEAST):
        assert is_number


def test_a_trait_that_came_later_has_a_neutral_value() -> None:
    later = [trait.name for trait in TRAITS.values() if trait.since != "1.0"]
    assert all(TRAITS[name].neutral is not None for name in later)
