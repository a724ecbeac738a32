"""Bodies that nobody meant: whatever comes, the answer is below 500, in the API's own form."""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.apps import App, answer

from tokenspeed.server.responses.store import ResponseStore

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA = {"type": "object", "properties": {"x": {"type": "string"}}}
MARK = {"type": "ephemeral"}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [
            {"role": "system", "content": "Be."},
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": MARK}]},
            {"role": "assistant", "content": None, "reasoning": "hm", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "out"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
        "tool_choice": "auto", "max_tokens": 9, "stop": ["x"], "reasoning_effort": "low",
        "logit_bias": {"1": 2}, "stream_options": {"include_usage": True},
    },
    "/v1/completions": {"prompt": ["a", "b"], "max_tokens": 3, "logprobs": 1, "n": 2},
    "/v1/messages": {
        "system": [{"type": "text", "text": "Be.", "cache_control": MARK}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "", "signature": "tsp1pAAAA"},
                {"type": "text", "text": "b"},
                {"type": "tool_use", "id": "c", "name": "f", "input": {"x": [1]}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": [
                    {"type": "text", "text": "out"}]}]},
        ],
        "tools": [{"name": "f", "input_schema": SCHEMA}, {"type": "bash_20250124", "name": "b"}],
        "tool_choice": {"type": "auto"}, "thinking": {"type": "adaptive", "display": "omitted"},
        "output_config": {"effort": "low"}, "max_tokens": 9, "stop_sequences": ["x"],
    },
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "x"}]},
    "/v1/responses": {
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "summary": [], "encrypted_content": "tsp1pAAAA"},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "out"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}, {"type": "web_search"},
                  {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "g"}]}],
        "include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low"},
        "text": {"format": {"type": "text"}}, "metadata": {"k": "v"}, "max_output_tokens": 9,
        "previous_response_id": None, "instructions": "Be.", "tool_choice": "auto",
    },
    "/tokenize": {"messages": [{"role": "user", "content": "x"}]},
    "/detokenize": {"tokens": [1, 2, 3]},
}  # fmt: skip
ODD: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 1.5, "", "x", "\u0000", "\ufdd0", [], [[]], {}, [None],
    {"type": "text"}, {"type": "function"}, {"role": "user"}, "resp_" + "0" * 24, "x" * 3000,
    {"": {"": []}}, [{}] * 50, "reasoning", "{", "[1]", {"$ref": "#"}, {"type": []}, [True, "a"],
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside another one."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, item in inside:
        found.append((*path, key))
        if isinstance(item, dict | list):
            found += places(item, (*path, key))
    return found


def mutated(body: dict[str, Any], chooser: random.Random) -> dict[str, Any]:
    """Return a body with up to three values changed, taken out or given a neighbour."""
    body = copy.deepcopy(body)
    for _ in range(chooser.randint(1, 3)):
        *path, key = chooser.choice(places(body))
        holder: Any = body
        for step in path:
            holder = holder[step]
        match chooser.randrange(4):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[chooser.choice(["type", "id", "content", "name", "n"])] = copy.deepcopy(
                    chooser.choice(ODD)
                )
            case _:
                holder[key] = copy.deepcopy(chooser.choice(ODD))
        if not body:
            break
    return body


def check(app: App, path: str, body: dict[str, Any]) -> None:
    reply = app.call(path, body)
    assert reply.status < 500, reply.text
    if reply.status >= 400:
        error = reply.json()["error"]
        assert error["message"]
        assert len(error["message"]) < 1100
    elif reply.headers["content-type"].startswith("text/event-stream"):
        assert reply.events(), "a stream says something"


def run(app: App, seed: int, num_requests: int) -> None:
    chooser = random.Random(seed)
    for number in range(num_requests):
        path, body = chooser.choice(list(BODIES.items()))
        stream = {"stream": True} if chooser.random() < 0.3 and "tok" not in path else {}
        sent = mutated({"model": "m", **body, **stream}, chooser)
        try:
            check(app, path, sent)
        except BaseException:
            print(f"seed {seed}, request {number}: {path} {sent!r}")
            raise


@pytest.fixture
def app(tmp_path: Path) -> App:
    made = App(tmp_path, responses=ResponseStore(tmp_path / "responses", max_bytes=1 << 16))
    made.engine.script = answer(think="a", text="b", calls=[("f", "{}")])
    return made


@pytest.mark.parametrize("path", BODIES)
def test_the_body_that_is_mutated_is_fine_itself(app: App, path: str) -> None:
    assert app.call(path, {"model": "m", **BODIES[path]}).status == 200


def test_no_body_brings_a_500(app: App) -> None:
    run(app, seed=random.SystemRandom().randrange(1 << 32), num_requests=2000)


@pytest.mark.slow
def test_ten_thousand_bodies_bring_no_500(app: App) -> None:
    run(app, seed=random.SystemRandom().randrange(1 << 32), num_requests=10_000)
