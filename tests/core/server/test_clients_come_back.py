"""Through all three APIs: a turn sent back as its client sends it goes on from its own tokens."""

from __future__ import annotations

import asyncio
import json
import random
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.apps import App, answer
from tests.support.chats import shuffled, tools
from tests.support.client_rules import Rule

from tokenspeed.server.conversation.rules import NamedRule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tokenspeed.contracts.conversation import Conversation

ARGUMENTS = '{"n": 1.0,   "x":  "\\u00e9"}'
"""As no template would write it."""
SCRIPT = answer(think="I look.", text="Now:\n", calls=[("f", ARGUMENTS)])
SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}


@pytest.fixture
def app(tmp_path: Path) -> App:
    made = App(tmp_path, turn_memory_mib=16, context=16_384)
    made.engine.script = SCRIPT
    return made


def compact(arguments: str) -> str:
    """Write arguments as JavaScript clients do: without spaces, 1.0 as 1."""
    value = json.loads(arguments, parse_float=lambda text: int(float(text)))
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def chat(app: App, change: Callable[[str], str], *, reasoning: bool) -> None:
    offered = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
    body: dict[str, Any] = {"model": "m", "tools": offered}
    said: list[Any] = [{"role": "user", "content": "go"}]
    for _ in range(3):
        reply = app.call("/v1/chat/completions", {**body, "messages": said}).json()
        message = reply["choices"][0]["message"]
        call = message["tool_calls"][0]
        call["function"]["arguments"] = change(call["function"]["arguments"])
        kept = {"role": "assistant", "content": message["content"], "tool_calls": [call]}
        if reasoning:
            kept["reasoning_content"] = message["reasoning_content"]
        said += [kept, {"role": "tool", "tool_call_id": call["id"], "content": "out"}]


def messages(app: App, change: Callable[[str], str], *, reasoning: bool) -> None:
    offered = [{"name": "f", "input_schema": SCHEMA}]
    said: list[Any] = [{"role": "user", "content": "go"}]
    for _ in range(3):
        body = {"model": "m", "max_tokens": 200, "tools": offered, "messages": said}
        blocks = app.call("/v1/messages", body).json()["content"]
        call = blocks[-1]
        call["input"] = json.loads(change(json.dumps(call["input"])))
        kept = blocks if reasoning else [b for b in blocks if b["type"] != "thinking"]
        result = {"type": "tool_result", "tool_use_id": call["id"], "content": "out"}
        said += [{"role": "assistant", "content": kept}, {"role": "user", "content": [result]}]


def responses(app: App, change: Callable[[str], str], *, reasoning: bool) -> None:
    offered = [{"type": "function", "name": "f", "parameters": SCHEMA}]
    said: list[Any] = [{"type": "message", "role": "user", "content": "go"}]
    for _ in range(3):
        body = {"model": "m", "tools": offered, "input": said, "store": False}
        items = app.call("/v1/responses", body).json()["output"]
        call = items[-1]
        call["arguments"] = change(call["arguments"])
        said += items if reasoning else [i for i in items if i["type"] != "reasoning"]
        said.append({"type": "function_call_output", "call_id": call["call_id"], "output": "out"})


@pytest.mark.parametrize("reasoning", [True, False])
@pytest.mark.parametrize("change", [str, compact])
@pytest.mark.parametrize("api", [chat, messages, responses])
def test_three_tool_calls_keep_every_token(
    app: App, api: Callable[..., None], change: Callable[[str], str], reasoning: bool
) -> None:
    api(app, change, reasoning=reasoning)
    prompts = [list(memoryview(one.prompt_ids).cast("i")) for one in app.engine.submits]
    script = app.tokens(SCRIPT)
    assert len(prompts) == 3
    for before, after in pairwise(prompts):
        assert after[: len(before) + len(script)] == before + script
    assert app.metrics.turns.continued._value.get() == 2


@pytest.mark.parametrize("api", [chat, messages, responses])
def test_an_edited_argument_is_rendered(app: App, api: Callable[..., None]) -> None:
    api(app, lambda arguments: arguments.replace("1", "2"), reasoning=True)
    assert app.metrics.turns.continued._value.get() == 0
    assert app.metrics.turns.refused.labels("edited")._value.get() == 2
    assert '"n": 2' in app.engine.prompt


def test_200_shuffles_of_tools_and_keys_are_one_token_sequence_in_all_apis(tmp_path: Path) -> None:
    app, rng = App(tmp_path, context=1 << 14), random.Random(8)
    base = tools(rng, 6)
    app.engine.script = "Done."
    said = [{"role": "user", "content": "go"}]
    bodies: list[tuple[str, str, dict[str, Any]]] = [
        ("/v1/chat/completions", "parameters", {"messages": said}),
        ("/v1/messages", "input_schema", {"messages": said, "max_tokens": 9}),
        ("/v1/responses", "parameters", {"input": "go", "store": False}),
    ]
    for index in range(200):
        path, name, body = bodies[index % len(bodies)]
        mixed = [{"name": t.name, "description": t.description, name: t.parameters} for t in base]
        if path == "/v1/chat/completions":
            mixed = [{"type": "function", "function": one} for one in mixed]
        elif path == "/v1/responses":
            mixed = [{"type": "function", **one} for one in mixed]
        rng.shuffle(mixed)
        reply = app.call(path, {"model": "m", "tools": shuffled(rng, mixed), **body})
        assert reply.status == 200, reply.text
    prompts = {bytes(one.prompt_ids) for one in app.engine.submits}
    assert (len(app.engine.submits), len(prompts)) == (200, 1)
    assert all(tool.name in app.engine.prompt for tool in base)


def test_agents_are_known_by_their_headers(app: App) -> None:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "go"}]}
    app.call("/v1/messages", body, x_claude_code_session_id="c", x_claude_code_agent_id="a")
    app.call("/v1/responses", {"model": "m", "input": "go", "store": False}, session_id="s")
    app.call("/v1/chat/completions", {**body}, x_session_id="o", x_parent_session_id="p")
    found = [(terms.session, terms.parent, terms.root) for terms in app.engine.terms]
    assert found == [("c/a", "c", "c"), ("s", "", ""), ("o", "p", "p")]


def test_a_rule_that_raises_ends_one_request_and_is_named(tmp_path: Path) -> None:
    def picky(conversation: Conversation) -> Conversation:
        if conversation.messages[-1].text == "bad":
            raise KeyError("bad")
        return conversation

    app = App(tmp_path, rules=(NamedRule("acme/picky", Rule(picky)),))  # type: ignore[arg-type]
    for text, status in (("good", 200), ("bad", 500), ("good", 200)):
        body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": text}]}
        for path in ("/v1/chat/completions", "/v1/messages"):
            reply = app.call(path, body)
            assert reply.status == status, reply.text
            assert ("client rule acme/picky failed" in reply.text) == (status == 500)


def test_a_turn_whose_client_went_away_is_not_remembered(app: App) -> None:
    app.engine.pause_s = 0.01
    body = {"model": "m", "messages": [{"role": "user", "content": "go"}], "stream": True}

    async def leave() -> None:
        scope_gone = asyncio.Event()
        sent = 0

        async def receive() -> dict[str, Any]:
            if not scope_gone.is_set():
                scope_gone.set()
                return {"type": "http.request", "body": json.dumps(body).encode()}
            await asyncio.sleep(0.1)
            return {"type": "http.disconnect"}

        async def send(message: dict[str, Any]) -> None:
            nonlocal sent
            sent += 1

        scope = {
            "type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [],
            "query_string": b"", "raw_path": b"", "root_path": "", "scheme": "http",
            "server": ("test", 80), "client": ("test", 1), "http_version": "1.1",
        }  # fmt: skip
        await app.asgi(scope, receive, send)
        assert sent > 1

    asyncio.run(leave())
    assert len(app.engine.submits) == 1
    assert app.metrics.turns.remembered._value.get() == 0
