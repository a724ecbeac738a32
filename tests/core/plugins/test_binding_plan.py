"""The binding plan: equal choices give equal digests, whatever order they were made in."""

from __future__ import annotations

import dataclasses
import json

import pytest
from tests.support.offers import attention, kernel

from tokenspeed.kernels import select
from tokenspeed.plugins import BindingPlan

CPU = {"device": "cpu", "dtype": "float32"}
ATTENTION = select("attention", [attention("a/paged"), attention("b/other")], CPU)
NORM = select("norm.rms", [kernel("a/x")], CPU)
LINEAR = select("linear.dense", [kernel("a/y")], CPU)


def test_the_digest_names_the_choices_not_their_order() -> None:
    one = BindingPlan.of({"attention": ATTENTION, "sampler": NORM}, [NORM, LINEAR])
    two = BindingPlan.of({"sampler": NORM, "attention": ATTENTION}, [LINEAR, NORM])
    assert one.digest == two.digest
    assert len(one.digest) == 16


def test_another_winner_or_version_gives_another_digest() -> None:
    base = BindingPlan.of({"attention": ATTENTION}, [NORM]).digest
    other = select("attention", [attention("a/paged"), attention("b/other")], CPU, pin="b/other")
    newer = dataclasses.replace(ATTENTION.winner, plugin_version="1.1")
    upgraded = dataclasses.replace(ATTENTION, winner=newer)
    digests = {
        base,
        BindingPlan.of({"attention": other}, [NORM]).digest,
        BindingPlan.of({"attention": upgraded}, [NORM]).digest,
        BindingPlan.of({"attention": ATTENTION}, [LINEAR]).digest,
    }
    assert len(digests) == 4


def test_the_digest_is_the_same_in_every_process() -> None:
    plan = BindingPlan.of({"attention": ATTENTION}, [NORM])
    assert plan.digest == "3e2212a7651fab19"


def test_the_plan_is_json_with_every_reason_and_cannot_be_changed() -> None:
    plan = BindingPlan.of({"attention": ATTENTION}, [NORM])
    data = json.loads(json.dumps(plan.to_json()))
    assert data["slots"]["attention"]["plugin"] == "a"
    verdicts = [item["verdict"] for item in data["slots"]["attention"]["record"]["candidates"]]
    assert verdicts == ["won", "lost"]
    assert data["kernels"][0]["offer"] == "x"
    with pytest.raises(TypeError):
        plan.slots["attention"] = NORM  # type: ignore[index]
