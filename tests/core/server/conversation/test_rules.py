"""Client rules are chosen by name, run in one order, are counted, and fail one request at most."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.client_rules import Rule, core_registry

from tokenspeed.builtin import CLIENT_RULES
from tokenspeed.contracts.client_rule import TemplateFacts
from tokenspeed.contracts.conversation import Conversation, Message
from tokenspeed.contracts.registration import Offer
from tokenspeed.errors import CapabilityError, EngineError, PluginError
from tokenspeed.server.conversation.rules import ClientRules, NamedRule, load_rules

if TYPE_CHECKING:
    from collections.abc import Callable

CORE = [f"core/{name}" for name in CLIENT_RULES]
CHAT = Conversation((Message("user", ("a", "b")),))


def chosen(*names: str, others: tuple[str, ...] = ()) -> list[str]:
    return [item.pin for item in load_rules(names, core_registry(*others), TemplateFacts())]


def test_all_rules_run_unless_switched_off() -> None:
    assert chosen("all") == chosen() == CORE
    assert (
        chosen("all", "-order") == chosen("-core/order") == [p for p in CORE if p != "core/order"]
    )
    assert chosen("order", "attribution") == ["core/attribution", "core/order"]
    assert chosen("none") == []


def test_rules_of_others_follow_in_the_order_of_their_names() -> None:
    assert chosen("all", others=("b/x", "a/y")) == [*CORE, "a/y", "b/x"]
    assert chosen("x", others=("b/x",)) == ["b/x"]


@pytest.mark.parametrize(
    ("name", "words"),
    [("ordre", "is not offered"), ("-ordre", "is not offered"), ("x", "one with")],
)
def test_a_name_that_means_no_rule_ends_the_start(name: str, words: str) -> None:
    with pytest.raises(CapabilityError, match=words):
        chosen(name, others=("a/x", "b/x"))


@pytest.mark.parametrize("load", [lambda: None, lambda **given: sys.exit(0)])
def test_a_rule_that_cannot_be_loaded_is_named(load: Callable[..., Any]) -> None:
    found = core_registry()
    found.commit("acme", "2.0", [("client_rule", Offer("client_rule", "bad", load))])
    with pytest.raises(PluginError, match=r"plugin acme 2\.0 failed at load of client_rule/bad"):
        load_rules(("all",), found, TemplateFacts())


def test_a_rule_that_raises_or_returns_nonsense_ends_the_request_and_is_named() -> None:
    def fails(chat: Conversation) -> object:
        raise ZeroDivisionError("by rule")

    cases = (
        (fails, "ZeroDivisionError: by rule"),
        (lambda chat: sys.exit(3), "it ended with SystemExit: 3"),
        (lambda chat: None, "NoneType"),
    )
    for bad, words in cases:
        rules = ClientRules([NamedRule("acme/bad", Rule(bad))])  # type: ignore[arg-type]
        with pytest.raises(EngineError, match=f"client rule acme/bad failed: .*{words}"):
            rules.apply(CHAT)


def test_only_rules_that_changed_something_are_counted() -> None:
    counts: Counter[str] = Counter()
    rules = ClientRules(
        load_rules(("all",), core_registry(), TemplateFacts()), lambda pin: counts.update([pin])
    )
    rules.apply(rules.apply(CHAT))
    assert counts == {"core/blocks": 1}
