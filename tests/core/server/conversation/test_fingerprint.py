"""Messages of equal meaning have equal digests, and others have not."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

import pytest
from tests.support.chats import chat, shuffled

from tokenspeed.contracts.conversation import Conversation, Message, Tool, ToolCall
from tokenspeed.engine.messages import Terms
from tokenspeed.server.conversation.fingerprint import (
    json_meaning,
    message_print,
    message_prints,
    scope_print,
)

SAME = [
    ('{"a": 1, "b": [1, 2]}', '{"b":[1,2],"a":1}'),
    ('{"n": 1.0}', '{"n": 1}'),
    ('{"n": 1e3}', '{"n": 1000}'),
    ('{"n": -0.0}', '{"n": 0}'),
    ('{"n": 0.10}', '{"n": 0.1}'),
    ('{"s": "\\u00e9\\/"}', '{"s": "\u00e9/"}'),
    ("", "{}"),
    (" {}\n", "{}"),
    ("{broken", "{broken"),
]
OTHER = [
    ('{"a": 1}', '{"a": 2}'),
    ('{"a": 1}', '{"a": "1"}'),
    ('{"a": 1}', '{"a": true}'),
    ('{"a": [1, 2]}', '{"a": [2, 1]}'),
    ('{"a": null}', "{}"),
    ('{"a": 9007199254740993}', '{"a": 9007199254740992}'),
    ("{broken", "{ broken"),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_values_are_equal(one: str, other: str) -> None:
    assert json_meaning(one) == json_meaning(other)


@pytest.mark.parametrize(("one", "other"), OTHER)
def test_other_values_are_not(one: str, other: str) -> None:
    assert json_meaning(one) != json_meaning(other)


def value(rng: random.Random, depth: int = 3) -> Any:
    """Return random JSON."""
    kind = rng.randrange(7 if depth else 5)
    if kind < 5:
        return rng.choice([None, True, rng.randrange(9), rng.random(), f"\u00e9\n{rng.random()}"])
    if kind == 5:
        return [value(rng, depth - 1) for _ in range(rng.randrange(4))]
    return {f"k{i}": value(rng, depth - 1) for i in range(rng.randrange(4))}


def test_however_arguments_are_written_they_mean_the_same() -> None:
    for seed in range(300):
        rng = random.Random(seed)
        arguments = {"x": value(rng), "y": value(rng)}
        forms = {
            json.dumps(arguments),
            json.dumps(arguments, indent=2, ensure_ascii=False),
            json.dumps(shuffled(rng, arguments), separators=(",", ":")),
        }
        assert len({json_meaning(form) for form in forms}) == 1, f"seed {seed}"


def test_every_field_of_a_message_counts() -> None:
    call = ToolCall("c", "f", "{}")
    base = Message("assistant", ("a",), "r", (call,))
    changed = [
        dataclasses.replace(base, content=("b",)),
        dataclasses.replace(base, tool_calls=()),
        dataclasses.replace(base, tool_calls=(call, call)),
        dataclasses.replace(base, name="n"),
        Message("user", ("a",)),
        Message("tool", ("a",)),
        Message("tool", ("a",), tool_call_id="c"),
        Message("user", ("a", "")),
        Message("user", (" a",)),
        Message("user", ("ab",)),
        Message("user", ("a", "b")),
    ]
    bodies = {message_print(message).body for message in (base, *changed)}
    assert len(bodies) == len(changed) + 1


def test_an_answers_edges_cuts_and_reasoning_do_not_count_in_its_body() -> None:
    base = message_print(Message("assistant", ("Done.",), "Why."))
    for message in (
        Message("assistant", ("\n\nDone. ",), " Why.\n"),
        Message("assistant", ("Do", "ne.")),
        Message("assistant", ("Done.",), "Because."),
    ):
        assert message_print(message).body == base.body
    assert message_print(Message("assistant", ("Done.",), " Why.\n")) == base
    assert message_print(Message("assistant", ("Done.",))).reasoning == b""


def test_tools_variables_and_who_asks_are_the_scope() -> None:
    base = Conversation((), (Tool("a"), Tool("b")))
    scopes = [
        scope_print(conversation, terms)
        for conversation, terms in (
            (base, Terms()),
            (base, Terms(salt=b"s")),
            (base, Terms(tenant="t")),
            (base, Terms(owner="t")),
            (dataclasses.replace(base, tools=base.tools[::-1]), Terms()),
            (dataclasses.replace(base, tools=(Tool("a", strict=True), Tool("b"))), Terms()),
            (dataclasses.replace(base, tools=(Tool("a", "x"), Tool("b"))), Terms()),
            (dataclasses.replace(base, template_kwargs={"enable_thinking": False}), Terms()),
        )
    ]
    assert len(set(scopes)) == len(scopes)
    assert scope_print(base, Terms(session="s", priority=3)) == scopes[0]


def test_odd_texts_have_digests_too() -> None:
    for seed in range(100):
        messages = chat(random.Random(seed)).messages
        assert message_prints(messages) == message_prints(messages)
    assert message_print(Message("user", ("\ud800",))).body
