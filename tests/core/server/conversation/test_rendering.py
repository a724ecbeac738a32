"""Conversations in the form that templates read."""

from __future__ import annotations

from typing import Any

import pytest

from tokenspeed.contracts.conversation import Message, Tool, ToolCall
from tokenspeed.errors import RequestError
from tokenspeed.server.conversation.rendering import template_messages, template_tools
from tokenspeed.tokenizer.chat import ChatTemplate

CALLS = "{% for m in messages %}{% for c in m.tool_calls or [] %}ARGS{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("written", "reads_text"),
    [
        ("{{ c.function.arguments | tojson }}", False),
        ("{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}", False),
        ("{{ '```json' + c.function.arguments + '```' }}", True),
        ("{{ c.function.arguments }}", True),
        ("{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}"
         "{{ c.function.arguments | tojson }}{% endif %}", False),
        ("nothing", False),
    ],
)  # fmt: skip
def test_a_template_gets_arguments_in_the_form_that_it_reads(
    written: str, reads_text: bool
) -> None:
    template = ChatTemplate(CALLS.replace("ARGS", written))
    assert template.reads_argument_text is reads_text
    call = ToolCall("c", "f", '{"a":"b"}')
    messages = template_messages(
        [Message("assistant", tool_calls=(call,))], argument_text=template.reads_argument_text
    )
    shown = template.render(messages)
    assert shown in ('{"a": "b"}', '```json{"a": "b"}```', "a=b", "nothing")


def test_one_block_is_a_string_and_several_are_parts() -> None:
    one, two, none = template_messages(
        [Message("user", ("a",)), Message("user", ("a", "b")), Message("assistant", ())]
    )
    assert one["content"] == "a"
    assert two["content"] == [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert none["content"] == ""


def test_a_tool_is_described_as_it_was_sent() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"b": {}, "a": {}}}
    (tool, bare) = template_tools([Tool("f", "does", schema), Tool("g")]) or ()
    assert tool == {
        "type": "function",
        "function": {"name": "f", "description": "does", "parameters": schema},
    }
    assert list(tool["function"]["parameters"]["properties"]) == ["b", "a"]
    assert bare["function"] == {"name": "g", "parameters": {"type": "object", "properties": {}}}
    assert template_tools([]) is None


@pytest.mark.parametrize("arguments", ["", " ", "{}"])
def test_no_arguments_are_an_empty_object(arguments: str) -> None:
    call = ToolCall("c", "f", arguments)
    (message,) = template_messages([Message("assistant", tool_calls=(call,))])
    assert message["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize("arguments", ["[1]", "{", "nul", "[" * 100_000])
def test_arguments_that_are_no_object_are_named(arguments: str) -> None:
    call = ToolCall("c", "f", arguments)
    with pytest.raises(RequestError, match=r"messages\.0\.tool_calls\.0\.function\.arguments"):
        template_messages([Message("assistant", tool_calls=(call,))])
