"""Calls through a real server whose model writes them: whole, streamed, cut, bad, refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from openai import OpenAI
from tests.support.dialogue import HERMES_TEMPLATE
from tests.support.scripted import byte_tokenizer, write_scripted_model
from tests.support.server import ServerProcess
from tokenizers import AddedToken

from tokenspeed.parsers.harmony import Harmony
from tokenspeed.parsers.kimi_k2 import KimiK2

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
    },
}
PLAIN = (
    "{% for message in messages %}{{ message.role }} {{ message.content }}\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
)
ARGUMENTS = '{"q": "a \\"b\\"\\nc", "n": [1, {"x": null}]}'
HERMES = f'<tool_call>\n{{"name": "search", "arguments": {ARGUMENTS}}}\n</tool_call>'
KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {
        "script": f"<think>\nI look.\nFirst {HERMES}\n{HERMES}",
        "template": HERMES_TEMPLATE,
        "parsers": ("hermes", "qwen3"),
        "expected": ("I look.\nFirst ", None, 2),
    },
    "gpt_oss": {
        "script": "<|channel|>analysis<|message|>I look.<|end|><|start|>assistant<|channel|>"
        "commentary<|message|>Wait.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.search <|constrain|>json<|message|>{ARGUMENTS}",
        "template": PLAIN + "<|start|>assistant{# <|channel|><|message|> #}",
        "special": Harmony.markers,
        "parsers": ("gpt_oss", "gpt_oss"),
        "expected": ("I look.", "Wait.", 1),
    },
    "kimi_k2": {
        "script": "Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.search:7"
        f"<|tool_call_argument_begin|>{ARGUMENTS}<|tool_call_end|><|tool_calls_section_end|>",
        "template": PLAIN + "{# <|tool_calls_section_begin|> #}",
        "special": KimiK2().markers,
        "parsers": ("kimi_k2", "kimi"),
        "expected": (None, "Ok.", 1),
    },
}


def write_model(folder: Path, kind: str) -> Path:
    """Write a model of this type, whose marks are special tokens where its own are."""
    tokenizer = byte_tokenizer()
    special = [AddedToken(mark, special=True) for mark in KINDS[kind].get("special", ())]
    tokenizer.add_special_tokens(special)
    script = KINDS[kind]["script"]
    model = write_scripted_model(
        folder / "caller",
        tokenizer=tokenizer,
        script=script,
        max_position_embeddings=2048,
        model_type=kind,
    )
    path = model / "tokenizer_config.json"
    fields = json.loads(path.read_text()) | {"chat_template": KINDS[kind]["template"]}
    path.write_text(json.dumps(fields))
    return model


@pytest.fixture(scope="module", params=list(KINDS))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def server(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp(kind)
    with ServerProcess(write_model(folder, kind), folder) as running:
        yield running


def ask(server: ServerProcess, **fields: Any) -> Any:
    body = {
        "model": "caller",
        "messages": [{"role": "user", "content": "Look."}],
        "tools": [TOOL],
        **fields,
    }
    return server.call("/v1/chat/completions", body)


def test_calls_reasoning_and_content_are_told_apart(server: ServerProcess, kind: str) -> None:
    choice = ask(server).json()["choices"][0]
    message = choice["message"]
    reasoning, content, num_calls = KINDS[kind]["expected"]
    assert message.get("reasoning_content") == reasoning
    assert (message["content"] or None) == content
    calls = message["tool_calls"]
    assert choice["finish_reason"] == "tool_calls"
    assert [call["function"]["name"] for call in calls] == ["search"] * num_calls
    assert [call["function"]["arguments"] for call in calls] == [ARGUMENTS] * num_calls
    ids = [call["id"] for call in calls]
    assert len(set(ids)) == num_calls
    if kind == "kimi_k2":
        assert ids == ["functions.search:7"]


def test_a_stream_adds_up_to_the_whole_answer(server: ServerProcess, kind: str) -> None:
    client = OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
    stream = client.chat.completions.create(
        model="caller",
        messages=[{"role": "user", "content": "Look."}],
        tools=[TOOL],  # type: ignore[list-item]
        stream=True,
    )
    texts = {"reasoning_content": "", "content": ""}
    arguments: dict[int, str] = {}
    for chunk in stream:
        delta = chunk.choices[0].delta
        for name in texts:
            texts[name] += getattr(delta, name, None) or ""
        for call in delta.tool_calls or ():
            assert call.function is not None
            new = call.function.arguments or ""
            arguments[call.index] = arguments.get(call.index, "") + new
    reasoning, content, num_calls = KINDS[kind]["expected"]
    assert texts == {"reasoning_content": reasoning or "", "content": content or ""}
    assert arguments == dict.fromkeys(range(num_calls), ARGUMENTS)


def test_an_answer_cut_inside_a_call_keeps_what_it_has(server: ServerProcess, kind: str) -> None:
    whole = ask(server).json()["usage"]["completion_tokens"]
    choice = ask(server, max_tokens=whole - 30).json()["choices"][0]
    assert choice["finish_reason"] == "length"
    last = choice["message"]["tool_calls"][-1]["function"]["arguments"]
    assert ARGUMENTS.startswith(last)
    assert 0 < len(last) < len(ARGUMENTS)


def test_a_call_of_no_tool_is_an_error_with_its_name(server: ServerProcess, kind: str) -> None:
    other = {**TOOL, "function": {**TOOL["function"], "name": "find"}}  # type: ignore[dict-item]
    answer = ask(server, tools=[other])
    if kind == "qwen3":  # inside reasoning it is a thought
        assert answer.status == 200
        assert "search" in answer.json()["choices"][0]["message"]["reasoning_content"]
        return
    assert answer.status == 422
    assert "it calls 'search', which is not among the tools (find)" in answer.body.decode()


def test_the_start_and_the_plan_say_which_parsers_read(server: ServerProcess, kind: str) -> None:
    tools, reasoning = KINDS[kind]["parsers"]
    shown = server.log.read_text()
    assert f"parsers  tool_calls {tools}, reasoning {reasoning}" in shown
    plan = server.call("/v1/engine/plan").json()
    assert plan["parsers"] == {"tool_calls": f"core/{tools}", "reasoning": f"core/{reasoning}"}
