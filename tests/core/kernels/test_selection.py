"""Selection: pin, filter, band, score, specificity, name; and no order of arrival matters."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.offers import attention, kernel

from tokenspeed.contracts.binding import RegisteredOffer
from tokenspeed.contracts.capability import TRAITS
from tokenspeed.contracts.kernel import Band
from tokenspeed.errors import CapabilityError, PluginError
from tokenspeed.kernels import explain, select
from tokenspeed.log import LOGGER

CPU = {"device": "cpu", "dtype": "float32"}


def winner(candidates: list[RegisteredOffer[Any]], traits: Any = CPU, **options: Any) -> str:
    return select("op", candidates, traits, **options).winner.pin


def refusal(candidates: list[RegisteredOffer[Any]], traits: Any = CPU, **options: Any) -> str:
    with pytest.raises(CapabilityError) as caught:
        select("op", candidates, traits, **options)
    return str(caught.value)


def test_the_higher_band_wins() -> None:
    assert winner([kernel("a/plain"), kernel("b/fast", band=Band.PERFORMANT)]) == "b/fast"


def test_within_a_band_the_score_for_the_objective_decides() -> None:
    def score(traits: Any, objective: str) -> float:
        return 2.0 if objective == "throughput" else -2.0

    candidates = [kernel("a/plain"), kernel("b/wide", score=score)]
    assert winner(candidates, objective="throughput") == "b/wide"
    assert winner(candidates, objective="latency") == "a/plain"


def test_with_equal_scores_the_more_specific_offer_wins() -> None:
    candidates = [kernel("a/any", dtype=("*",)), kernel("b/f32", dtype=("float32",))]
    assert winner(candidates) == "b/f32"


def test_with_all_else_equal_plugin_id_and_name_decide() -> None:
    assert winner([kernel("b/x"), kernel("a/y"), kernel("a/x")]) == "a/x"


def test_a_default_is_not_called_a_pin() -> None:
    candidates = [kernel("a/plain"), kernel("b/fast", band=Band.PERFORMANT)]
    record = select("op", candidates, CPU, pin="a/plain", pinned_as="the default").record
    assert {entry["offer"]: entry["reason"] for entry in record["candidates"]} == {
        "a/plain": "the default",
        "b/fast": "a/plain is the default",
    }


@pytest.mark.parametrize("pin", ["a/none", "b/half"])
def test_every_candidate_beside_a_pin_that_fails_has_a_reason(pin: str) -> None:
    candidates = [kernel("a/plain"), kernel("b/half", dtype=("bfloat16",))]
    with pytest.raises(CapabilityError) as caught:
        select("op", candidates, CPU, pin=pin)
    assert caught.value.record is not None
    reasons = {entry["offer"]: entry["reason"] for entry in caught.value.record["candidates"]}
    assert reasons["a/plain"] == f"{pin} is pinned"
    assert "trait.dtype" in reasons["b/half"]


def test_a_pin_beats_the_band() -> None:
    candidates = [kernel("a/plain"), kernel("b/fast", band=Band.PERFORMANT)]
    decision = select("op", candidates, CPU, pin="a/plain")
    assert decision.winner.pin == "a/plain"
    assert [entry["reason"] for entry in decision.record["candidates"]] == [
        "a/plain is pinned",
        "pinned",
    ]


def test_a_pin_that_cannot_do_it_is_refused_with_reasons_and_alternatives() -> None:
    candidates = [kernel("a/plain"), kernel("b/half", dtype=("float16",))]
    text = refusal(candidates, pin="b/half")
    assert "op is pinned to b/half, which cannot do it" in text
    assert "trait.dtype: wanted 'float32', has 'float16'" in text
    assert "nearest offers: a/plain; change the pin" in text
    assert "--unsafe-force trait.dtype" in text


def test_an_unknown_pin_is_answered_with_the_nearest() -> None:
    assert "did you mean 'a/plain'" in refusal([kernel("a/plain")], pin="a/plan")
    assert "PLUGIN/NAME" in refusal([kernel("a/plain")], pin="zzz")


def test_an_offer_silent_about_a_trait_is_refused_with_its_clause() -> None:
    text = refusal([attention("a/paged")], {**CPU, "sinks": True})
    assert "trait.sinks: wanted True, not declared" in text
    assert winner([attention("a/paged")], {**CPU, "sinks": False}) == "a/paged"


def test_nobody_can_do_it_names_request_candidates_and_the_common_cause() -> None:
    text = refusal([kernel("a/x"), kernel("b/y")], {**CPU, "head_dim": 192})
    assert text.startswith("no kernel for op (float32, head_dim=192) on cpu: 2 candidates, none")
    assert "none take head_dim 192" in text
    assert "a/x refused: trait.head_dim: wanted 192, not declared" in text
    assert "0 candidates; load a plugin" in refusal([])


def test_determinism_is_a_filter() -> None:
    fast = kernel("b/fast", band=Band.PERFORMANT, deterministic=False)
    assert winner([kernel("a/plain"), fast]) == "b/fast"
    assert winner([kernel("a/plain"), fast], objective="determinism") == "a/plain"
    assert "trait.deterministic" in refusal([attention("a/paged")], objective="determinism")


def test_a_fallback_is_reported_allowed_or_refused(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    half = kernel("b/fast", band=Band.PERFORMANT, dtype=("float16",))
    monkeypatch.setattr(LOGGER, "propagate", True)
    with caplog.at_level("WARNING", logger="tokenspeed"):
        decision = select("op", [kernel("a/plain"), half], CPU, fallback="warn")
        assert decision.record["is_fallback"]
        assert "op falls back to a/plain (REFERENCE): b/fast refused" in caplog.text
        caplog.clear()
        assert winner([kernel("a/plain"), half], fallback="allow") == "a/plain"
        assert caplog.text == ""
    assert "falls back" in refusal([kernel("a/plain"), half], fallback="error")


def test_an_offer_for_another_device_is_no_fallback() -> None:
    other = kernel("b/fast", band=Band.PERFORMANT, device=("acme",))
    assert winner([kernel("a/plain"), other], fallback="error") == "a/plain"


@pytest.mark.parametrize(
    "score", [lambda *_: 1 / 0, lambda *_: float("nan"), lambda *_: float("inf")]
)
def test_a_broken_score_names_its_plugin(score: Any) -> None:
    with pytest.raises(PluginError, match=r"plugin b.*score of bad"):
        select("op", [kernel("a/plain"), kernel("b/bad", score=score)], CPU)


def test_a_request_with_an_unknown_trait_is_our_mistake() -> None:
    with pytest.raises(ValueError, match="did you mean 'head_dim'"):
        select("op", [kernel("a/plain")], {**CPU, "headdim": 64})


def test_the_record_explains_every_candidate() -> None:
    candidates = [
        kernel("a/plain"),
        kernel("b/fast", band=Band.PORTABLE),
        kernel("c/half", dtype=("float16",)),
    ]
    text = explain([select("op", candidates, CPU)])
    assert "op (float32) on cpu -> b/fast" in text
    assert "won     b/fast 1.0 PORTABLE: best of 2 that pass" in text
    assert "lost    a/plain 1.0 REFERENCE: band REFERENCE < PORTABLE" in text
    assert "refused c/half 1.0 REFERENCE: trait.dtype: wanted 'float32', has 'float16'" in text


VALUES = {"dtype": ("float32", "float16"), "head_dim": (64, 128), "sinks": (True, False)}
REQUIRES = st.fixed_dictionaries(
    {"device": st.sampled_from([("cpu",), ("*",), ("acme",)])},
    optional={
        name: st.lists(st.sampled_from([*values, "*"]), min_size=1, unique=True).map(tuple)
        for name, values in VALUES.items()
    },
)
OFFERS = st.lists(
    st.tuples(
        st.sampled_from("abc"),
        st.sampled_from("xyz"),
        st.sampled_from(list(Band)),
        st.sampled_from([None, 0.0, 1.5]),
        REQUIRES,
    ),
    max_size=6,
    unique_by=lambda item: item[:2],
)
REQUEST = st.fixed_dictionaries(
    {"device": st.just("cpu")},
    optional={name: st.sampled_from(values) for name, values in VALUES.items()},
)


def build(items: list[tuple[str, str, Band, float | None, dict[str, Any]]]) -> list[Any]:
    return [
        kernel(
            f"{plugin}/{name}",
            band=band,
            score=None if score is None else (lambda *_, value=score: value),
            only=requires,
        )
        for plugin, name, band, score, requires in items
    ]


def test_the_order_of_candidates_never_matters() -> None:
    for seed in range(1000):
        check_permutation(Random(seed), f"seed {seed}")


def check_permutation(random: Random, message: str) -> None:
    pool = [(plugin, name) for plugin in "abc" for name in "xyz"]
    items = [
        (*pin, random.choice(list(Band)), random.choice([None, 0.0, 1.5]), some_traits(random))
        for pin in random.sample(pool, random.randint(0, 6))
    ]
    request_ = {"device": "cpu", **{name: random.choice(VALUES[name]) for name in VALUES}}
    for name in random.sample(sorted(VALUES), random.randint(0, len(VALUES))):
        del request_[name]
    candidates = build(items)
    shuffled = random.sample(candidates, len(candidates))
    assert outcome(candidates, request_) == outcome(shuffled, request_), message


def some_traits(random: Random) -> dict[str, Any]:
    traits: dict[str, Any] = {"device": random.choice([("cpu",), ("*",), ("acme",)])}
    for name, values in VALUES.items():
        if random.random() < 0.7:
            traits[name] = tuple(random.sample([*values, "*"], random.randint(1, 3)))
    return traits


def outcome(candidates: list[Any], request_: Any) -> object:
    try:
        return select("op", candidates, request_, fallback="allow").record
    except CapabilityError as error:
        return str(error)


@settings(max_examples=300, deadline=None)
@given(OFFERS, REQUEST, st.sampled_from(sorted(VALUES)), st.data())
def test_adding_a_trait_to_a_request_never_adds_candidates(
    items: Any, request_: Any, name: str, data: Any
) -> None:
    request_.pop(name, None)
    more = {**request_, name: data.draw(st.sampled_from(VALUES[name]))}
    assert name in TRAITS
    assert passing(build(items), more) <= passing(build(items), request_)


def passing(candidates: list[RegisteredOffer[Any]], request_: dict[str, Any]) -> set[str]:
    try:
        record = select("op", candidates, request_, fallback="allow").record
    except CapabilityError:
        return set()
    return {item["offer"] for item in record["candidates"] if item["verdict"] != "refused"}
