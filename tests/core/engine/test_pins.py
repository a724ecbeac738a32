"""Pins: a name that nothing has is an error, one that this start does not ask for a warning."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from tests.support.scripted import write_scripted_model

from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.build import build_engine
from tokenspeed.engine.pins import PINNED_SLOTS, SETTING_OF_SLOT, check_pins, idle_pins
from tokenspeed.engine.rules import rules_of
from tokenspeed.errors import ConfigError
from tokenspeed.log import LOGGER
from tokenspeed.plugins.slots import SLOTS

if TYPE_CHECKING:
    from pathlib import Path

OPERATORS = ("linear.dense", "norm.rms")


@pytest.mark.parametrize(
    ("slot", "text"),
    [
        ("attntion", "did you mean 'attention'"),
        ("linear.dens", "did you mean 'linear.dense'"),
        ("quantum", "known: attention, "),
        ("cli", "no slot or operator"),
        ("operator", "no slot or operator"),
    ],
)
def test_a_pin_of_nothing_is_refused(slot: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        check_pins({slot: "acme/x"}, OPERATORS)


def test_slots_their_parts_and_operators_can_be_pinned() -> None:
    named = ("attention", "attention.full", "moe.experts", "device", "linear.dense")
    check_pins(dict.fromkeys(named, "acme/x"), OPERATORS)


def test_every_slot_that_is_chosen_is_pinned_or_named_by_a_setting() -> None:
    others = {"operator", "cli"}  # operators are pinned one by one, commands are typed
    live = {slot.name for slot in SLOTS.values() if slot.live}
    assert {*PINNED_SLOTS, *SETTING_OF_SLOT} == live - others


@pytest.mark.parametrize("slot", sorted(SETTING_OF_SLOT))
def test_a_slot_with_a_setting_of_its_own_is_not_pinned(slot: str) -> None:
    with pytest.raises(ConfigError, match=f"write {SETTING_OF_SLOT[slot]} core/lru"):
        rules_of(EngineConfig(pins=(f"{slot}=core/lru",)))


def test_idle_pins_are_those_that_nothing_asked_for() -> None:
    pins = {"attention": "a/x", "moe": "a/y", "moe.experts": "a/z", "norm.rms": "a/n"}
    chosen = ("attention.full", "sampler", "norm.rms")
    assert idle_pins(pins, chosen) == [
        "pin moe=a/y is of no use: this start chooses no moe",
        "pin moe.experts=a/z is of no use: this start chooses no moe.experts",
    ]
    assert idle_pins({"norm": "a/x"}, chosen) != []  # an operator has no parts


def test_a_start_warns_of_a_pin_that_is_of_no_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(LOGGER, "propagate", True)
    config = EngineConfig(
        model=str(write_scripted_model(tmp_path / "m")),
        plugins=("reference", "sdk"),
        pins=("moe=reference/plain", "sampler=reference/philox"),
        kv_gib=0.001,
    )
    with caplog.at_level(logging.WARNING, LOGGER.name):
        build_engine(config).close()
    warned = [record.getMessage() for record in caplog.records]
    assert warned == ["pin moe=reference/plain is of no use: this start chooses no moe"]


def test_a_policy_that_nobody_asked_for_is_the_default() -> None:
    assert rules_of(EngineConfig()).defaults == ("policy",)
    assert rules_of(EngineConfig(policy="core/lru")).defaults == ()
