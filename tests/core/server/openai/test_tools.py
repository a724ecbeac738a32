"""Tools over the chat API: calls in answers, streamed and whole, and in the history."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import openai
import pytest
from tests.support.apps import App, answer

if TYPE_CHECKING:
    from pathlib import Path

TOOL = {"type": "function", "function": {"name": "sh", "parameters": {"type": "object"}}}
USER = {"role": "user", "content": "List it."}
CALLS = [("sh", '{"command": "ls"}'), ("sh", '{"command": "pwd"}')]


@pytest.fixture
def app(tmp_path: Path) -> App:
    made = App(tmp_path)
    made.engine.script = answer(think="I look.", text="Now:", calls=CALLS)
    return made


def ask(app: App, *, status: int = 200, **fields: Any) -> Any:
    body = {"model": "m", "messages": [USER], "tools": [TOOL], **fields}
    reply = app.call("/v1/chat/completions", body)
    assert reply.status == status, reply.text
    return reply.events() if fields.get("stream") else reply.json()


def test_calls_stand_in_the_message(app: App) -> None:
    choice = ask(app)["choices"][0]
    message = choice["message"]
    assert (message["content"], message["reasoning_content"]) == ("Now:", "I look.")
    functions = [call["function"] for call in message["tool_calls"]]
    assert functions == [{"name": name, "arguments": text} for name, text in CALLS]
    assert choice["finish_reason"] == "tool_calls"
    assert len({call["id"] for call in message["tool_calls"]}) == 2


def test_calls_without_text_have_no_content(app: App) -> None:
    app.engine.script = answer(calls=CALLS)
    assert ask(app)["choices"][0]["message"]["content"] is None


def test_deltas_add_up_and_name_each_call_once(app: App) -> None:
    calls: dict[int, dict[str, str]] = {}
    reasons = []
    for _, data in ask(app, stream=True)[:-1]:
        (choice,) = data["choices"]
        reasons += [choice["finish_reason"]] if choice["finish_reason"] else []
        for delta in choice["delta"].get("tool_calls", ()):
            if "id" in delta:
                assert delta["index"] not in calls
                assert delta["type"] == "function"
                calls[delta["index"]] = {"name": delta["function"]["name"], "arguments": ""}
            calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    assert list(calls.values()) == [{"name": name, "arguments": text} for name, text in CALLS]
    assert reasons == ["tool_calls"]


def test_each_choice_has_its_own_calls(app: App) -> None:
    choices = ask(app, n=3)["choices"]
    ids = [call["id"] for choice in choices for call in choice["message"]["tool_calls"]]
    assert len(set(ids)) == 6


def test_an_answer_that_is_cut_says_length(app: App) -> None:
    app.engine.script = answer(calls=CALLS[:1])
    assert ask(app, max_tokens=8)["choices"][0]["finish_reason"] == "length"


def test_with_tool_choice_none_calls_are_text(app: App) -> None:
    choice = ask(app, tool_choice="none")["choices"][0]
    assert "tool_calls" not in choice["message"]
    assert choice["finish_reason"] == "stop"
    assert '"name": "sh"' in app.engine.prompt, "the prompt is the same, so its cache serves"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "sh"}}])
def test_a_choice_that_cannot_be_made_sure_of_is_refused(app: App, choice: Any) -> None:
    error = ask(app, tool_choice=choice, status=400)["error"]
    assert (error["param"], error["code"]) == ("tool_choice", "unsupported_parameter")


def test_a_bad_call_is_a_typed_error(app: App) -> None:
    app.engine.script = "@sh#{!"
    error = ask(app, status=422)["error"]
    assert error["code"] == "invalid_tool_call"
    last = ask(app, stream=True)[-1][1]
    assert last["error"]["code"] == "invalid_tool_call"


@pytest.mark.parametrize("arguments", ['{"command":"ls"}', '{ "command" : "ls" }'])
def test_history_renders_however_a_client_spells_arguments(app: App, arguments: str) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "sh", "arguments": arguments}}
    history = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "a.txt"}]},
    ]
    ask(app, messages=history)
    assert '{"name": "sh", "arguments": {"command": "ls"}}\n</tool_call>' in app.engine.prompt
    assert "<tool_response>\na.txt\n</tool_response>" in app.engine.prompt


def test_thinking_is_read_under_both_names(app: App) -> None:
    app.engine.script = "x"
    prompts = set()
    for name in ("reasoning_content", "reasoning"):
        ask(app, messages=[USER, {"role": "assistant", "content": "a", name: "hm"}, USER])
        prompts.add(app.engine.prompt)
    assert len(prompts) == 1


def test_the_openai_client_runs_a_loop_of_tools(app: App) -> None:
    async def loop() -> tuple[str | None, Any]:
        transport = httpx.AsyncClient(transport=httpx.ASGITransport(app.asgi))
        async with openai.AsyncOpenAI(
            base_url="http://test/v1", api_key="-", http_client=transport, max_retries=0
        ) as client:
            messages: list[Any] = [USER]
            first = await client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
            said = first.choices[0].message
            messages.append(said.model_dump())
            for call in said.tool_calls or ():
                assert json.loads(call.function.arguments)["command"] in ("ls", "pwd")
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "out"})
            app.engine.script = "Done."
            last = await client.chat.completions.create(model="m", messages=messages, tools=[TOOL])
            return last.choices[0].message.content, last.choices[0].message.tool_calls

    assert asyncio.run(loop()) == ("Done.", None)
    assert app.engine.prompt.count("<tool_response>\nout") == 2
