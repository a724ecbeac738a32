"""Items of the responses API as conversations."""

from __future__ import annotations

from typing import Any

from tokenspeed.contracts.conversation import Conversation, Message, ToolCall, ToolChoice
from tokenspeed.server.conversation.sealed import pack
from tokenspeed.server.responses.conversation import conversation_of
from tokenspeed.server.responses.input_items import ITEMS
from tokenspeed.server.responses.schemas import ResponsesRequest
from tokenspeed.server.responses.tools import ToolTable


def read(*items: dict[str, Any], **fields: Any) -> Conversation:
    given = ResponsesRequest.prepared({"model": "m", "input": list(items), **fields})
    request = ResponsesRequest.model_validate(given)
    said = ITEMS.validate_python(given["input"])
    return conversation_of(request, ToolTable(request.tools).tools, said)


def call(number: int, **more: Any) -> dict[str, Any]:
    return {
        "type": "function_call",
        "call_id": f"c{number}",
        "name": "f",
        "arguments": "{}",
        **more,
    }


def output(number: int) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": f"c{number}", "output": "out"}


def say(role: str, text: str, kind: str = "input_text") -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": kind, "text": text}]}


def test_instructions_and_developers_are_system_messages() -> None:
    messages = read(say("developer", "Be short."), {"role": "user", "content": "x"},
                    instructions="Be kind.").messages  # fmt: skip
    assert messages == (
        Message("system", ("Be kind.",)),
        Message("system", ("Be short.",)),
        Message("user", ("x",)),
    )


def test_thinking_text_and_parallel_calls_are_one_turn() -> None:
    thinking = {"type": "reasoning", "id": "rs", "summary": [], "encrypted_content": pack("hm")}
    messages = read(
        say("user", "go"),
        thinking,
        say("assistant", "I call.", "output_text"),
        call(1),
        call(2),
        output(1),
        output(2),
        call(3),
        output(3),
        say("assistant", "Done.", "output_text"),
    ).messages
    calls = [ToolCall(f"c{number}", "f", "{}") for number in (1, 2, 3)]
    answers = [Message("tool", ("out",), tool_call_id=f"c{n}", name="f") for n in (1, 2, 3)]
    assert messages == (
        Message("user", ("go",)),
        Message("assistant", ("I call.",), reasoning="hm", tool_calls=(calls[0], calls[1])),
        *answers[:2],
        Message("assistant", (), tool_calls=(calls[2],)),
        answers[2],
        Message("assistant", ("Done.",)),
    )


def test_thinking_opens_a_new_turn_after_what_was_said() -> None:
    thinking = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}]}
    messages = read(say("assistant", "a", "output_text"), thinking, call(1)).messages
    assert messages == (
        Message("assistant", ("a",)),
        Message("assistant", (), reasoning="hm", tool_calls=(ToolCall("c1", "f", "{}"),)),
    )


def test_thinking_that_others_sealed_is_what_they_show_of_it() -> None:
    thinking = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAA"}
    shown = {**thinking, "content": [{"type": "reasoning_text", "text": "hm"}]}
    assert read(thinking, call(1)).messages[0].reasoning == ""
    assert read(shown, call(1)).messages[0].reasoning == "hm"


def test_calls_in_namespaces_have_the_models_name() -> None:
    space = {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f"}]}
    read_back = read(call(1, namespace="n"), tools=[space],
                     tool_choice={"type": "function", "name": "f", "namespace": "n"})  # fmt: skip
    assert read_back.messages[0].tool_calls[0].name == "n__f"
    assert [tool.name for tool in read_back.tools] == ["n__f"]
    assert read_back.tool_choice == ToolChoice("named", "n__f")
