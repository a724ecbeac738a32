"""A model that cannot be spread as asked: the numbers that work are named, and they do work."""

from __future__ import annotations

import re

import pytest
from tests.support.traced_models import even, model_class, tiny

from tokenspeed.errors import ConfigError, PlacementError
from tokenspeed.placement.compiled import compile_model
from tokenspeed.placement.fitting import TRIED, check_experts
from tokenspeed.placement.mesh import MAX_DEGREE, Degrees, build_mesh

NINE_HEADS = {
    **tiny("llama"),
    "vocab_size": 288,
    "hidden_size": 72,
    "intermediate_size": 96,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 8,
}


def refusal(config: dict[str, object], **degrees: int) -> str:
    with pytest.raises(PlacementError) as caught:
        compile_model(model_class(config), config, build_mesh(Degrees(**degrees)), dtype="bfloat16")
    return str(caught.value)


def compiles(config: dict[str, object], **degrees: int) -> bool:
    try:
        compile_model(model_class(config), config, build_mesh(Degrees(**degrees)), dtype="bfloat16")
    except (PlacementError, ConfigError):
        return False
    return True


def test_the_numbers_named_are_those_that_compile() -> None:
    text = refusal(NINE_HEADS, tp=2)
    found = re.search(r"others as given: tp ([\d, ]+)$", text)
    assert found is not None, text
    named = {int(number) for number in found[1].split(", ")}
    assert {1, 3} <= named
    assert named == {number for number in TRIED if compiles(NINE_HEADS, tp=number)}
    assert text.startswith("the model cannot be spread over tp 2: layers.0.attention.qkv")


def test_each_degree_that_was_asked_for_is_tried_alone() -> None:
    text = refusal(NINE_HEADS, tp=2, pp=2)
    assert "tp 1, 3" in text
    assert "; or pp" not in text  # no number of stages makes two ranks share nine heads


def test_one_change_that_does_not_suffice_is_said() -> None:
    assert "none that changes one of them alone" in refusal(NINE_HEADS, tp=2, dense_tp=5 * 2)


def test_experts_are_spread_only_where_there_are_some() -> None:
    check_experts(Degrees(ep=2), ("group",))
    check_experts(Degrees(tp=2), ())
    with pytest.raises(ConfigError, match="ep is 2 and the model has no experts"):
        check_experts(Degrees(ep=2), ())


def test_degrees_end_where_the_settings_end() -> None:
    for name in ("tp", "dp", "cp", "pp", "ep", "dense_tp"):
        with pytest.raises(ConfigError, match=f"{name} is 1025, allowed is [01] to {MAX_DEGREE}"):
            Degrees(**{name: MAX_DEGREE + 1})
    with pytest.raises(ConfigError, match="ask for 1048576 ranks, at most 4096"):
        Degrees(tp=1024, pp=1024)


def test_even_sizes_compile_for_the_ranks_they_are_made_for() -> None:
    assert compiles(even("llama"), tp=2)
