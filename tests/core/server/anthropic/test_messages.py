"""POST /v1/messages: bodies, events in Anthropic's order, usage, errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.apps import App, answer

from tokenspeed.errors import CapacityError, EngineError, RequestError
from tokenspeed.server.conversation.sealed import unpack
from tokenspeed.server.http.api_keys import ApiKeys

if TYPE_CHECKING:
    from pathlib import Path

USER = {"role": "user", "content": "List it."}
TOOL = {"name": "bash", "description": "Runs.", "input_schema": {"type": "object"}}
CALLED = answer(think="I look.", text="Now:", calls=[("bash", '{"command": "ls"}')])


def ask(app: App, *, status: int = 200, **fields: Any) -> Any:
    body = {"model": "m", "max_tokens": 100, "messages": [USER], **fields}
    reply = app.call("/v1/messages?beta=true", body, anthropic_version="2023-06-01")
    assert reply.status == status, reply.text
    return reply.events() if fields.get("stream") else reply.json()


def test_an_answer_is_text_with_usage(app: App) -> None:
    body = ask(app)
    assert body["type"] == "message"
    assert body["role"] == "assistant"
    assert body["content"] == [{"type": "text", "text": "Hello."}]
    assert (body["stop_reason"], body["stop_sequence"]) == ("end_turn", None)
    assert body["usage"] == {
        "input_tokens": len(app.engine.submits[0].prompt_ids) // 4,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": 7,
        "output_tokens_details": {"thinking_tokens": 0},
        "recomputed_tokens": 0,
        "match_ends": [{"position": 0, "reason": "never_stored"}],
    }


def test_ids_are_unique(app: App) -> None:
    app.engine.script = CALLED
    bodies = [ask(app, tools=[TOOL]) for _ in range(3)]
    assert len({body["id"] for body in bodies}) == 3
    assert all(body["id"].startswith("msg_") for body in bodies)
    assert len({body["content"][-1]["id"] for body in bodies}) == 3


def test_thinking_text_and_calls_are_blocks_in_order(app: App) -> None:
    app.engine.script = CALLED
    body = ask(app, tools=[TOOL])
    thinking, text, call = body["content"]
    assert (thinking["type"], thinking["thinking"]) == ("thinking", "I look.")
    assert thinking["signature"]
    assert text == {"type": "text", "text": "Now:"}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "bash", {"command": "ls"})
    assert body["stop_reason"] == "tool_use"


def test_events_come_in_anthropics_order(app: App) -> None:
    app.engine.script = CALLED
    events = ask(app, tools=[TOOL], stream=True)
    assert all(name == data["type"] for name, data in events)
    names = [name for name, _ in events]
    kinds = [data["content_block"]["type"] for _, data in events if "content_block" in data]
    assert kinds == ["thinking", "text", "tool_use"]
    merged = [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]]
    block = ["content_block_start", "content_block_delta", "content_block_stop"]
    assert merged == ["message_start", *block * 3, "message_delta", "message_stop"]
    start, last = events[0][1]["message"], events[-2][1]
    assert (start["content"], start["stop_reason"]) == ([], None)
    assert last["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert last["usage"]["output_tokens"] == len(CALLED) + 1
    assert last["usage"]["output_tokens_details"] == {"thinking_tokens": len("^I look.$")}


def test_a_stream_adds_up_to_the_whole_answer(app: App) -> None:
    calls = [("bash", '{"x": 1}'), ("bash", '{"x": [2, 3]}')]
    app.engine.script = answer(think="a b", text="c d", calls=calls)
    whole = ask(app, tools=[TOOL])["content"]
    blocks: list[dict[str, Any]] = []
    for _, data in ask(app, tools=[TOOL], stream=True):
        if data["type"] == "content_block_start":
            assert data["index"] == len(blocks)
            blocks.append({**data["content_block"], "partial_json": ""})
        elif data["type"] == "content_block_delta":
            assert data["index"] == len(blocks) - 1, "one block at a time"
            for name, text in data["delta"].items():
                if name != "type":
                    blocks[-1][name] += text
    for block in blocks:
        arguments = block.pop("partial_json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(arguments)
    for block in (*blocks, *whole):
        block.pop("id", None)  # each answer has its own
    assert blocks == whole


def test_usage_tells_what_the_cache_did(app: App) -> None:
    app.engine.cached = 16
    total = ask(app)["usage"]["input_tokens"] + 16
    marked = [{"type": "text", "text": "List it.", "cache_control": {"type": "ephemeral"}}]
    body = ask(app, messages=[{"role": "user", "content": marked}])
    assert body["usage"]["cache_read_input_tokens"] == 16
    assert body["usage"]["cache_creation_input_tokens"] == total - 16
    assert body["usage"]["input_tokens"] == 0
    assert app.engine.terms[-1].retain_s == 300
    events = ask(app, stream=True)
    assert events[0][1]["message"]["usage"]["cache_read_input_tokens"] == 16
    assert events[-2][1]["usage"]["cache_read_input_tokens"] == 16


@pytest.mark.parametrize(
    ("place", "seconds"),
    [("system", 3600), ("tools", 3600), ("top", 3600), ("result", 3600), ("nowhere", 0)],
)
def test_marks_anywhere_keep_the_prompt(app: App, place: str, seconds: int) -> None:
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    fields: dict[str, Any] = {
        "system": {"system": [{"type": "text", "text": "Be.", **mark}]},
        "tools": {"tools": [{**TOOL, **mark}]},
        "top": mark,
        "result": {"messages": [USER, {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": "x", **mark}]}]},
        "nowhere": {},
    }[place]  # fmt: skip
    ask(app, **fields)
    assert app.engine.terms[-1].retain_s == seconds


def test_the_parameters_reach_the_engine(app: App) -> None:
    ask(app, temperature=0.5, top_p=0.9, top_k=7, stop_sequences=["END"], max_tokens=10_000_000)
    params = app.engine.submits[-1].params
    prompt = len(app.engine.submits[-1].prompt_ids) // 4
    assert (params.temperature, params.top_p, params.top_k) == (0.5, 0.9, 7)
    assert (params.stop, params.max_tokens) == (("END",), 4096 - prompt)


def test_a_stop_sequence_is_named(app: App) -> None:
    app.engine.script = "one two three"
    body = ask(app, stop_sequences=["xx", " thr"])
    assert body["content"] == [{"type": "text", "text": "one two"}]
    assert (body["stop_reason"], body["stop_sequence"]) == ("stop_sequence", " thr")
    events = ask(app, stop_sequences=[" thr"], stream=True)
    assert events[-2][1]["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": " thr"}


def test_an_answer_that_is_cut_says_max_tokens(app: App) -> None:
    assert ask(app, max_tokens=3)["stop_reason"] == "max_tokens"


def test_thinking_that_is_not_shown_comes_back_in_its_signature(app: App) -> None:
    app.engine.script = answer(think="I look.", text="Now.")
    thinking = {"type": "adaptive", "display": "omitted"}
    shown = ask(app, thinking=thinking)["content"][0]
    assert shown["thinking"] == ""
    events = ask(app, thinking=thinking, stream=True)
    deltas = [data["delta"]["type"] for _, data in events if data["type"] == "content_block_delta"]
    assert "thinking_delta" not in deltas
    assert "signature_delta" in deltas
    assert unpack(shown["signature"]) == "I look."


def test_a_bad_call_is_an_error_of_the_request(app: App) -> None:
    app.engine.script = "@bash#{!"
    body = ask(app, tools=[TOOL], status=422)
    assert body["type"] == "error"
    assert body["error"]["type"] == "invalid_request_error"
    assert "cannot be read" in body["error"]["message"]


def test_errors_are_in_anthropics_form(app: App) -> None:
    body = ask(app, model="other", status=404)
    assert body["type"] == "error"
    assert body["error"]["type"] == "not_found_error"
    assert ask(app, messages=[], status=400)["error"]["type"] == "invalid_request_error"
    assert app.call("/v1/messages").json()["error"]["type"] == "invalid_request_error"
    app.engine.error, app.engine.fails_after = CapacityError("full; later", retry_after_s=3), 0
    assert ask(app, status=429)["error"]["type"] == "rate_limit_error"
    app.engine.error = EngineError("broken")
    assert ask(app, status=500)["error"]["type"] == "api_error"


def test_a_stream_that_fails_ends_with_an_error_event(app: App) -> None:
    app.engine.error, app.engine.fails_after = EngineError("broken; again"), 2
    events = ask(app, stream=True)
    assert events[-1] == (
        "error",
        {"type": "error", "error": {"type": "api_error", "message": "broken; again"}},
    )
    assert "message_stop" not in [name for name, _ in events]


def test_a_prompt_that_does_not_fit_makes_the_client_compact(app: App) -> None:
    body = ask(app, messages=[{"role": "user", "content": "x" * 5000}], status=400)
    assert body["error"]["type"] == "invalid_request_error"
    assert body["error"]["message"].startswith("prompt is too long: ")
    assert "tokens > 4095 maximum" in body["error"]["message"]


def test_the_key_comes_in_anthropics_header(tmp_path: Path) -> None:
    app = App(tmp_path, keys=ApiKeys({"secret": "team"}))
    body = {"model": "m", "max_tokens": 5, "messages": [USER]}
    refused = app.call("/v1/messages", body)
    assert (refused.status, refused.json()["error"]["type"]) == (401, "authentication_error")
    assert app.call("/v1/messages", body, x_api_key="wrong").status == 401
    assert app.call("/v1/messages", body, x_api_key="secret").status == 200
    assert app.engine.terms[-1].tenant == "team"


def test_silence_is_filled_with_pings(tmp_path: Path) -> None:
    app = App(tmp_path, keep_alive_s=0.01)
    app.engine.script, app.engine.pause_s = "ab", 0.05
    names = [name for name, _ in ask(app, stream=True)]
    assert "ping" in names
    assert names[0] == "message_start"


@pytest.mark.parametrize("is_early", [False, True])
def test_a_stream_counts_no_prompt_token_in_two_places(
    app: App, monkeypatch: pytest.MonkeyPatch, is_early: bool
) -> None:
    """Clients keep a count of message_start where message_delta says 0."""
    if is_early:
        monkeypatch.setattr("tokenspeed.server.answer.START_GRACE_S", 0.0)
    app.engine.cached = 7
    text = {"type": "text", "text": "List it.", "cache_control": {"type": "ephemeral"}}
    events = ask(app, stream=True, messages=[{"role": "user", "content": [text]}])
    start, last = events[0][1]["message"]["usage"], events[-2][1]["usage"]
    kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    kept = [last[kind] or start[kind] for kind in kinds]
    assert kept == [last[kind] for kind in kinds]
    body = {"model": "m", "messages": [USER]}
    assert sum(kept) == app.call("/v1/messages/count_tokens", body).json()["input_tokens"]
    assert start["cache_read_input_tokens"] == (0 if is_early else 7)


def test_tokens_are_counted_as_the_prompt_has_them(app: App) -> None:
    body = {"model": "m", "messages": [USER], "system": "Be.", "tools": [TOOL]}
    counted = app.call("/v1/messages/count_tokens", body).json()
    usage = ask(app, system="Be.", tools=[TOOL])["usage"]
    assert counted == {"input_tokens": usage["input_tokens"]}
    body["messages"] = [{"role": "user", "content": "x" * 5000}]
    assert app.call("/v1/messages/count_tokens", body).json()["input_tokens"] > 5000


def test_tools_of_the_vendor_are_left_out_and_counted(app: App) -> None:
    search = {"type": "web_search_20250305", "name": "web_search"}
    ask(app, tools=[TOOL, search, {"type": "x" * 100, "name": "y"}])
    assert "web_search" not in app.engine.prompt
    metrics = app.call("/metrics").text
    assert 'tokenspeed_special_tools_total{api="anthropic",type="web_search"} 1.0' in metrics
    assert 'tokenspeed_special_tools_total{api="anthropic",type="other"} 1.0' in metrics


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": None}, "max_tokens is missing"),
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"n": 2}, "unknown parameter \"n\""),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers is not supported"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "only text"),
        ({"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "image"}]}]}]},
         "messages.0.content.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [
            {"type": "tool_use", "id": "c", "name": "f", "input": {}}]}]}, "cannot have one"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages.0.role"),
        ({"tools": [{"name": "f"}]}, "tools.0.input_schema is missing"),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        ({"stop_sequences": [""]}, "empty string"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_name(app: App, fields: dict[str, Any], words: str) -> None:
    error = ask(app, status=400, **fields)["error"]
    assert error["type"] == "invalid_request_error"
    assert words in error["message"]


def test_what_agents_send_beside_is_taken(app: App) -> None:
    ask(
        app,
        metadata={"user_id": "u"},
        context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        output_config={"effort": "xhigh"},
        thinking={"type": "enabled", "budget_tokens": 2000},
        service_tier="auto",
    )
    body = ask(app, output_config={"effort": "high"})
    assert body["context_management"] == {"applied_edits": []}


def test_a_refusal_before_the_stream_keeps_its_status(app: App) -> None:
    app.engine.error, app.engine.fails_after = RequestError("no; change it", param="x"), 0
    reply = app.call(
        "/v1/messages", {"model": "m", "max_tokens": 5, "messages": [USER], "stream": True}
    )
    assert reply.status == 400
