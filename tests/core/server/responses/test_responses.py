"""POST /v1/responses: bodies, events in OpenAI's order, stored responses, errors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.apps import App, answer

from tokenspeed.errors import EngineError
from tokenspeed.server.http.api_keys import ApiKeys
from tokenspeed.server.responses.store import ResponseStore

if TYPE_CHECKING:
    from pathlib import Path

TOOL = {"type": "function", "name": "sh", "parameters": {"type": "object"}, "strict": False}
CALLED = answer(think="I look.", text="Now:", calls=[("sh", '{"command": "ls"}')])
ENCRYPTED = ["reasoning.encrypted_content"]


def ask(app: App, *, status: int = 200, **fields: Any) -> Any:
    reply = app.call("/v1/responses", {"model": "m", "input": "List it.", **fields})
    assert reply.status == status, reply.text
    return reply.events() if fields.get("stream") and status == 200 else reply.json()


def test_an_answer_is_a_message_item_with_usage(app: App) -> None:
    app.engine.cached = 16
    body = ask(app)
    (item,) = body["output"]
    assert (item["type"], item["role"], item["status"]) == ("message", "assistant", "completed")
    assert item["content"][0]["text"] == "Hello."
    assert (body["object"], body["status"], body["error"]) == ("response", "completed", None)
    prompt = len(app.engine.submits[0].prompt_ids) // 4
    assert body["usage"] == {
        "input_tokens": prompt,
        "input_tokens_details": {
            "cached_tokens": 16,
            "cache_write_tokens": prompt - 16,
            "recomputed_tokens": 0,
            "match_ends": [{"position": 16, "reason": "never_stored"}],
        },
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + 7,
    }


def test_thinking_text_and_calls_are_items_in_order(app: App) -> None:
    app.engine.script = CALLED
    body = ask(app, tools=[TOOL], store=False, include=ENCRYPTED)
    thinking, message, call = body["output"]
    assert (thinking["type"], thinking["summary"]) == ("reasoning", [])
    assert thinking["content"] == [{"type": "reasoning_text", "text": "I look."}]
    assert thinking["encrypted_content"]
    assert message["content"][0]["text"] == "Now:"
    assert (call["type"], call["name"], call["arguments"]) == (
        "function_call",
        "sh",
        '{"command": "ls"}',
    )
    assert call["call_id"] != call["id"]
    assert ask(app)["output"][0]["encrypted_content"] is None


def test_events_come_in_openais_order_and_are_numbered(app: App) -> None:
    app.engine.script = CALLED
    events = ask(app, tools=[TOOL], stream=True)
    assert all(name == data["type"] for name, data in events)
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    names = [name.removeprefix("response.") for name, _ in events]
    assert [name for i, name in enumerate(names) if i == 0 or name != names[i - 1]] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "completed",
    ]  # fmt: skip


def test_a_stream_adds_up_to_its_last_event(app: App) -> None:
    app.engine.script = CALLED
    events = ask(app, tools=[TOOL], stream=True)
    final = events[-1][1]["response"]
    done = [data["item"] for name, data in events if name == "response.output_item.done"]
    assert done == final["output"]
    for index, item in enumerate(final["output"]):
        said = [d for _, d in events if d.get("output_index") == index]
        assert {d.get("item_id", item["id"]) for d in said} == {item["id"]}
        text = "".join(d["delta"] for d in said if d["type"].endswith(".delta"))
        shown = item["arguments"] if "arguments" in item else item["content"][0]["text"]
        assert text == shown
    assert {data["response"]["id"] for _, data in events if "response" in data} == {final["id"]}


def test_ids_are_unique(app: App) -> None:
    app.engine.script = CALLED
    bodies = [ask(app, tools=[TOOL]) for _ in range(3)]
    items = [item for body in bodies for item in body["output"]]
    ids = [body["id"] for body in bodies] + [item["id"] for item in items]
    ids += [item["call_id"] for item in items if "call_id" in item]
    assert len(set(ids)) == len(ids) == 15


def test_an_answer_that_is_cut_is_incomplete(app: App) -> None:
    body = ask(app, max_output_tokens=3)
    assert (body["status"], body["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    assert body["output"][-1]["status"] == "incomplete"
    assert ask(app, max_output_tokens=3, stream=True)[-1][0] == "response.incomplete"


def test_a_response_is_gone_on_from_read_and_deleted(app: App) -> None:
    app.engine.script = CALLED
    first = ask(app, tools=[TOOL], instructions="Be kind.")
    output = {"type": "function_call_output", "call_id": first["output"][2]["call_id"]}
    app.engine.script = "Done."
    second = ask(
        app,
        tools=[TOOL],
        input=[{**output, "output": "a.txt"}],
        previous_response_id=first["id"],
    )
    assert second["previous_response_id"] == first["id"]
    assert "List it." in app.engine.prompt
    assert '"name": "sh", "arguments": {"command": "ls"}}' in app.engine.prompt
    assert "a.txt" in app.engine.prompt
    assert "Be kind." not in app.engine.prompt, "instructions are of one request"
    ask(app, tools=[TOOL], input="And?", previous_response_id=second["id"])
    assert "Done.<|im_end|>" in app.engine.prompt
    assert "a.txt" in app.engine.prompt
    path = f"/v1/responses/{first['id']}"
    assert app.call(path).json() == first
    assert app.call(path, method="DELETE").json()["deleted"] is True
    assert app.call(path).json()["error"]["code"] == "response_not_found"
    assert ask(app, previous_response_id=second["id"], status=404)["error"]["code"] == (
        "response_not_found"
    )


def test_a_streamed_response_is_stored_before_its_last_event(app: App) -> None:
    final = ask(app, stream=True)[-1][1]["response"]
    assert app.call(f"/v1/responses/{final['id']}").json() == final
    assert final["store"] is True


def test_nothing_is_stored_that_should_not_be(app: App, tmp_path: Path) -> None:
    body = ask(app, store=False)
    assert body["store"] is False
    assert app.call(f"/v1/responses/{body['id']}").status == 404
    bare = App(tmp_path / "bare")
    assert ask(bare)["store"] is False
    assert "--response-store-mib is 0" in ask(bare, store=True, status=400)["error"]["message"]


def test_a_response_is_its_owners_alone(tmp_path: Path) -> None:
    keys = ApiKeys({"one": "a", "two": "b"})
    store = ResponseStore(tmp_path / "responses", max_bytes=1 << 20)
    app = App(tmp_path, keys=keys, responses=store)
    body = {"model": "m", "input": "x"}
    made = app.call("/v1/responses", body, authorization="Bearer one").json()
    path = f"/v1/responses/{made['id']}"
    assert app.call(path, authorization="Bearer two").status == 404
    assert app.call(path, method="DELETE", authorization="Bearer two").status == 404
    assert app.call(path, authorization="Bearer one").status == 200


def test_a_prompt_that_does_not_fit_fails_the_stream_in_an_event(app: App) -> None:
    error = ask(app, input="x" * 5000, status=400)["error"]
    assert error["code"] == "context_length_exceeded"
    events = ask(app, input="x" * 5000, stream=True)
    assert [name for name, _ in events] == [
        "response.created",
        "response.in_progress",
        "response.failed",
    ]
    failed = events[-1][1]["response"]
    assert failed["status"] == "failed"
    assert failed["error"]["code"] == "context_length_exceeded"
    assert "maximum context length is 4096 tokens" in failed["error"]["message"]


def test_a_stream_that_fails_ends_with_response_failed(app: App) -> None:
    app.engine.error, app.engine.fails_after = EngineError("broken; again"), 2
    name, data = ask(app, stream=True)[-1]
    assert name == "response.failed"
    assert data["response"]["error"] == {"code": "server_error", "message": "broken; again"}


def test_silence_is_filled_with_numbered_events(tmp_path: Path) -> None:
    app = App(tmp_path, keep_alive_s=0.01)
    app.engine.script, app.engine.pause_s = "ab", 0.05
    events = ask(app, stream=True)
    assert "keepalive" in [name for name, _ in events]
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))


def test_tools_that_only_the_vendor_runs_are_left_out_and_counted(app: App) -> None:
    app.engine.script = answer(calls=[("files__read", "{}")])
    space = {"type": "namespace", "name": "files", "description": "d", "tools": [
        {"type": "function", "name": "read", "parameters": {"type": "object"}}]}  # fmt: skip
    tools = [TOOL, space, {"type": "web_search"}, {"type": "custom", "name": "patch"}]
    body = ask(app, tools=tools)
    (call,) = body["output"]
    assert body["tools"][2] == {"type": "web_search"}
    assert (call["namespace"], call["name"]) == ("files", "read")
    assert "files__read" in app.engine.prompt
    assert "web_search" not in app.engine.prompt
    metrics = app.call("/metrics").text
    for kind in ("namespace", "web_search", "custom"):
        assert f'tokenspeed_special_tools_total{{api="responses",type="{kind}"}} 1.0' in metrics


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"temprature": 1}, "did you mean 'temperature'"),
        ({"background": True}, "background is not supported"),
        ({"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ({"input": [{"type": "web_search_call"}]}, "input.0.type"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
         "input.0.content.0.type"),
        ({"input": [{"role": "king", "content": "x"}]}, "input.0"),
        ({"input": 5}, "input is 5"),
        ({"tools": [{"type": "function"}]}, "tools.0.name is missing"),
        ({"tools": [TOOL, TOOL]}, "another tool has"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"include": ["message.output_text.logprobs"]}, "logprobs"),
        ({"max_output_tokens": 0}, "[1,"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_refused_by_name(app: App, fields: dict[str, Any], words: str) -> None:
    assert words in ask(app, status=400, **fields)["error"]["message"]
    assert words in ask(app, status=400, stream=True, **fields)["error"]["message"]


def test_what_agents_send_beside_is_taken(app: App) -> None:
    body = ask(
        app,
        instructions="Be.",
        reasoning={"effort": "medium", "summary": "auto"},
        text={"verbosity": "low"},
        include=ENCRYPTED,
        prompt_cache_key="session",
        client_metadata={"a": "b"},
        service_tier="auto",
        metadata={"k": "v"},
        stream_options={"include_obfuscation": False},
    )
    assert app.engine.terms[-1].session == "session"
    assert (body["metadata"], body["prompt_cache_key"]) == ({"k": "v"}, "session")
