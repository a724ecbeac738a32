"""Acceptance 8: what an offer does not declare it does not get, and growth adds nobody."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from tests.support.choices import some_offers, some_request, some_value
from tests.support.offers import attention

from tokenspeed.contracts.binding import RegisteredOffer
from tokenspeed.contracts.capability import TRAITS, satisfied
from tokenspeed.errors import CapabilityError
from tokenspeed.kernels import select

CPU = {"device": "cpu", "dtype": "float32"}


def passing(candidates: list[RegisteredOffer[Any]], request: dict[str, object]) -> set[str]:
    try:
        record = select("op", candidates, request, fallback="allow").record
    except CapabilityError as error:
        record = error.record or {}
    return {entry["offer"] for entry in record["candidates"] if not entry["clauses"]}


def test_08_requests_fail_closed() -> None:
    with pytest.raises(CapabilityError) as caught:
        select("attention", [attention("a/paged")], {**CPU, "sinks": True})
    assert caught.value.record is not None
    assert caught.value.record["candidates"][0]["clauses"] == [
        {"id": "trait.sinks", "wanted": True, "have": None}
    ]
    assert "trait.sinks: wanted True, not declared" in str(caught.value)
    seed = Random().randrange(1 << 32)
    random = Random(seed)
    for case in range(1000):
        candidates, request = some_offers(random), some_request(random)
        name = random.choice(sorted(TRAITS))
        before = {key: value for key, value in request.items() if key != name}
        after = {**before, name: some_value(random, name)}
        assert passing(candidates, after) <= passing(candidates, before), (seed, case, name)


def test_08_a_request_carries_a_trait_only_when_it_is_not_neutral() -> None:
    neutral = {name: trait.neutral for name, trait in TRAITS.items() if trait.neutral is not None}
    record = select("op", [attention("a/paged")], {**CPU, **neutral}).record
    assert record["traits"] == CPU


@pytest.mark.parametrize("name", sorted(TRAITS))
def test_08_an_offer_silent_about_a_trait_is_refused_with_its_clause(name: str) -> None:
    wanted = some_value(Random(1), name, neutral=False)
    silent = attention("a/silent")
    object.__setattr__(silent.offer, "requires", {})
    with pytest.raises(CapabilityError) as caught:
        select("op", [silent], {name: wanted})
    assert caught.value.record is not None
    clauses = caught.value.record["candidates"][0]["clauses"]
    assert [clause["id"] for clause in clauses] == [f"trait.{name}"]


@pytest.mark.parametrize(
    ("trait", "inside", "outside", "declared"),
    [
        ("head_dim", 128, 129, (64, 128)),
        ("draft_tokens", 8, 9, (8,)),
        ("alignment", 8, 4, (8,)),
        ("workspace", 4096, 4095, (4096,)),
        ("tensor_parallel", 8, 16, (8,)),
        ("arch", ("a2", "a1"), ("a2",), ("a1",)),
        ("mask", "tree", "bidirectional", ("tree",)),
    ],
)
def test_08_inside_the_declared_domain_it_passes_and_one_step_outside_it_is_refused(
    trait: str, inside: object, outside: object, declared: tuple[object, ...]
) -> None:
    assert satisfied(trait, inside, declared)
    assert not satisfied(trait, outside, declared)
    assert satisfied(trait, outside, ("*",))
