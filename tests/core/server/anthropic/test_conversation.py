"""Requests of the Anthropic API as conversations, and the prompts that come of them."""

from __future__ import annotations

from typing import Any

from tests.support.apps import App, answer

from tokenspeed.contracts.conversation import Message, ToolCall, ToolChoice
from tokenspeed.server.anthropic.conversation import conversation_of
from tokenspeed.server.anthropic.schemas import PromptFields
from tokenspeed.server.conversation.sealed import pack, sign


def read(*messages: dict[str, Any], **fields: Any) -> Any:
    return conversation_of(
        PromptFields.model_validate({"model": "m", "messages": list(messages), **fields})
    )


def text(said: str, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **more}


def test_a_string_and_one_block_are_the_same_message() -> None:
    mark = {"cache_control": {"type": "ephemeral"}}
    assert read({"role": "user", "content": "a"}) == read(
        {"role": "user", "content": [text("a", **mark)]}
    )


def test_system_is_the_first_message_and_stays_in_place_inside() -> None:
    system = [text("Be kind."), text("Be short.")]
    said = [
        {"role": "user", "content": "a"},
        {"role": "system", "content": [text("b")]},
        {"role": "assistant", "content": "c"},
    ]
    assert read(*said, system=system).messages == (
        Message("system", ("Be kind.", "Be short.")),
        Message("user", ("a",)),
        Message("system", ("b",)),
        Message("assistant", ("c",)),
    )


def test_a_turn_with_tools_is_an_assistants_and_tools_messages() -> None:
    use = {"type": "tool_use", "id": "c1", "name": "f", "input": {"x": [1, "\u00e9"]}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": [text("out")]}
    messages = read(
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [text("I call."), use]},
        {"role": "user", "content": [result, text("and now?")]},
    ).messages
    assert messages[1:] == (
        Message(
            "assistant", ("I call.",), tool_calls=(ToolCall("c1", "f", '{"x": [1, "\u00e9"]}'),)
        ),
        Message("tool", ("out",), tool_call_id="c1", name="f"),
        Message("user", ("and now?",)),
    )


def test_thinking_comes_back_whoever_signed_it() -> None:
    blocks = [
        {"type": "thinking", "thinking": "shown", "signature": sign("shown")},
        {"type": "thinking", "thinking": "", "signature": pack("hidden")},
        {"type": "redacted_thinking", "data": pack("packed")},
        {"type": "thinking", "thinking": "", "signature": "EqQBCkYIBxgC"},
        {"type": "redacted_thinking", "data": "tsp1p!not base64"},
        text("said"),
    ]
    (message,) = read({"role": "assistant", "content": blocks}).messages
    assert message == Message("assistant", ("said",), reasoning="shown\nhidden\npacked")


def test_the_choice_of_tools() -> None:
    user = {"role": "user", "content": "x"}
    choices = {
        "auto": ToolChoice(),
        "none": ToolChoice("none"),
        "any": ToolChoice("required"),
        "tool": ToolChoice("named", "f"),
    }
    for kind, choice in choices.items():
        assert read(user, tool_choice={"type": kind, "name": "f"}).tool_choice == choice
    one = read(user, tool_choice={"type": "auto", "disable_parallel_tool_use": True})
    assert one.tool_choice == ToolChoice(parallel=False)


def test_thinking_and_effort_are_the_templates_variables() -> None:
    user = {"role": "user", "content": "x"}
    assert read(user).template_kwargs == {}
    off = read(user, thinking={"type": "disabled"}).template_kwargs
    assert off == {"enable_thinking": False, "thinking": False}
    high = read(user, thinking={"type": "adaptive"}, output_config={"effort": "max"})
    assert high.template_kwargs == {
        "enable_thinking": True,
        "thinking": True,
        "reasoning_effort": "high",
    }


def test_an_answer_sent_back_renders_what_the_model_wrote(tmp_path: Any) -> None:
    app = App(tmp_path)
    app.engine.script = answer(text="Now:", calls=[("f", '{"x": 1}')])
    body = {"model": "m", "max_tokens": 99, "messages": [{"role": "user", "content": "go"}],
            "tools": [{"name": "f", "input_schema": {"type": "object"}}]}  # fmt: skip
    said = app.call("/v1/messages", body).json()["content"]
    first = app.engine.prompt
    result = {"type": "tool_result", "tool_use_id": said[1]["id"], "content": "out"}
    body["messages"] += [
        {"role": "assistant", "content": said},
        {"role": "user", "content": [result]},
    ]
    app.call("/v1/messages", body)
    assert app.engine.prompt.startswith(first + "Now:")
    assert '"name": "f", "arguments": {"x": 1}}' in app.engine.prompt
    assert "<tool_response>\nout\n</tool_response>" in app.engine.prompt
