"""One agent's session over each of the three APIs: the same calls, the same prompts, one cache."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.dialogue import MARKER, hermes_call, write_dialogue_model
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMANDS = ("ls", "cat a.txt", "rm a.txt")
CALLS = [f"Step {i}.\n" + hermes_call("sh", {"cmd": cmd}) for i, cmd in enumerate(COMMANDS)]
END = "All done."
GO = f"Clean up. {MARKER}"
SYSTEM = "You are an agent with a shell. " * 8
SCHEMA = {"type": "object", "properties": {"cmd": {"type": "string"}}}

Turn = tuple[list[str], int, int]
"""Commands called, prompt tokens, cached tokens."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("agent")
    model = write_dialogue_model(folder / "agent", ("?", *CALLS, END))
    with ServerProcess(model, folder, "--tool-parser", "hermes") as running:
        yield running


def post(server: ServerProcess, path: str, **body: Any) -> Any:
    reply = server.call(path, {"model": "agent", **body})
    assert reply.status == 200, reply.body
    return reply.json()


def chat(server: ServerProcess) -> tuple[list[Turn], str]:
    messages: list[Any] = [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": GO},
    ]
    tool = {"type": "function", "function": {"name": "sh", "parameters": SCHEMA}}
    turns: list[Turn] = []
    while True:
        body = post(server, "/v1/chat/completions", messages=messages, tools=[tool])
        said, usage = body["choices"][0]["message"], body["usage"]
        calls = said.get("tool_calls", [])
        commands = [json.loads(call["function"]["arguments"])["cmd"] for call in calls]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        turns.append((commands, usage["prompt_tokens"], cached))
        if not calls:
            return turns, said["content"]
        messages.append(said)
        messages += [{"role": "tool", "tool_call_id": c["id"], "content": MARKER} for c in calls]


def anthropic(server: ServerProcess) -> tuple[list[Turn], str]:
    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": GO}]}]
    tool = {"name": "sh", "input_schema": SCHEMA}
    turns: list[Turn] = []
    while True:
        body = post(server, "/v1/messages", messages=messages, tools=[tool], system=SYSTEM,
                    max_tokens=500)  # fmt: skip
        said, usage = body["content"], body["usage"]
        calls = [block for block in said if block["type"] == "tool_use"]
        cached = usage["cache_read_input_tokens"]
        prompt = usage["input_tokens"] + cached + usage["cache_creation_input_tokens"]
        turns.append(([call["input"]["cmd"] for call in calls], prompt, cached))
        if not calls:
            return turns, said[-1]["text"]
        results = [
            {"type": "tool_result", "tool_use_id": call["id"], "content": MARKER} for call in calls
        ]
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": results}]


def responses(server: ServerProcess, *, stores: bool) -> tuple[list[Turn], str]:
    given: list[Any] = [{"role": "user", "content": GO}]
    tool = {"type": "function", "name": "sh", "parameters": SCHEMA}
    more: dict[str, Any] = {"store": stores, "instructions": SYSTEM}
    turns: list[Turn] = []
    while True:
        body = post(server, "/v1/responses", input=given, tools=[tool], **more)
        usage, output = body["usage"], body["output"]
        calls = [item for item in output if item["type"] == "function_call"]
        cached = usage["input_tokens_details"]["cached_tokens"]
        commands = [json.loads(call["arguments"])["cmd"] for call in calls]
        turns.append((commands, usage["input_tokens"], cached))
        if not calls:
            return turns, output[-1]["content"][0]["text"]
        results = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": MARKER}
            for call in calls
        ]
        if stores:
            given, more["previous_response_id"] = results, body["id"]
        else:
            given = [*given, *output, *results]


def test_each_api_runs_the_session_on_the_same_prompts(server: ServerProcess) -> None:
    first, said = chat(server)
    assert [commands for commands, _, _ in first] == [[cmd] for cmd in COMMANDS] + [[]]
    assert said == END
    sessions = {
        "messages": anthropic(server),
        "responses": responses(server, stores=False),
        "stored responses": responses(server, stores=True),
    }
    for name, (turns, text) in sessions.items():
        assert text == END, name
        assert [turn[:2] for turn in turns] == [turn[:2] for turn in first], name
        for _, prompt, cached in turns:
            assert cached >= prompt - 16, f"{name}: the prompt was cached by the first session"
