"""Bad input: each a clear OpenAI error with the right status; the server stays healthy."""

from __future__ import annotations

import http.client
import re
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from tokenspeed.server.openai.schemas import ChatRequest
from tokenspeed.server.openai.tables import NEUTRAL

if TYPE_CHECKING:
    from tests.support.server import ServerProcess

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = [{"role": "user", "content": "x"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "[1"}}

# route, fields beside model (and messages), param in the error, words in its message
GRID: list[tuple[str, dict[str, Any], str | None, str]] = [
    (CHAT, {"temprature": 1}, "temprature", "did you mean 'temperature'"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools.0.function", "missing"),
    (CHAT, {"tools": [{"type": "custom", "name": "f"}]}, "tools.0.type", "only functions"),
    (CHAT, {"tools": [TOOL]}, "tools", "template knows no tools"),
    (CHAT, {"tools": [TOOL, TOOL]}, "tools.1", "another tool has"),
    (CHAT, {"tool_choice": "required"}, "tool_choice", "there are no tools"),
    (CHAT, {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}},
     "tool_choice", "the tools are"),
    (CHAT, {"modalities": ["text", "audio"]}, "modalities", "not supported"),
    (CHAT, {"audio": {"voice": "x"}}, "audio", "not supported"),
    (CHAT, {"store": True}, "store", "not supported"),
    (CHAT, {"reasoning_effort": "huge"}, "reasoning_effort", "'high'"),
    (TEXT, {"prompt": "x", "best_of": 2}, "best_of", "allowed is null, 1"),
    (TEXT, {"prompt": "x", "suffix": "y"}, "suffix", "not supported"),
    (CHAT, {"messages": "x"}, "messages", "list"),
    (CHAT, {"messages": []}, "messages", "at least 1"),
    (CHAT, {"messages": [{"role": "user"}]}, "messages.0.content", "missing"),
    (CHAT, {"messages": [{"role": "user", "content": None}]}, "messages.0.content", "missing"),
    (CHAT, {"messages": [{"role": "user", "content": 1}]}, "messages.0.content", "string"),
    (CHAT, {"messages": [{"role": "king", "content": "x"}]}, "messages.0.role", "'system'"),
    (CHAT, {"messages": [{"role": "tool", "content": "x"}]}, "messages.0.tool_call_id", "missing"),
    (CHAT, {"messages": [{"role": "function", "content": "x"}]}, "messages.0.role", "not support"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "tool_calls": [1]}]},
     "messages.0.tool_calls.0", "object"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "tool_calls": [CALL]}]},
     "messages.0.tool_calls", "makes no calls"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "tool_call_id": "c"}]},
     "messages.0.tool_call_id", "answers no call"),
    (CHAT, {"messages": [{"role": "assistant", "tool_calls": [CALL]}]},
     "messages.0.tool_calls.0.function.arguments", "JSON text of an object"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
     "messages.0.content.0.type", "only text parts"),
    (CHAT, {"messages": [{"role": "user", "content": "x", "foo": 1}]}, "messages.0.foo", "unknown"),
    (CHAT, {"max_tokens": 0}, "max_tokens", "[1,"),
    (CHAT, {"max_tokens": "5"}, "max_tokens", "integer"),
    (CHAT, {"max_tokens": 1.5}, "max_tokens", "integer"),
    (CHAT, {"max_tokens": 4, "max_completion_tokens": 5}, "max_completion_tokens", "equal values"),
    (CHAT, {"temperature": -1}, "temperature", "[0.0, 100.0]"),
    (CHAT, {"temperature": "hot"}, "temperature", "number"),
    (CHAT, {"top_p": 0}, "top_p", "(0.0, 1.0]"),
    (CHAT, {"top_k": -2}, "top_k", "[0,"),
    (CHAT, {"min_p": 2}, "min_p", "[0.0, 1.0]"),
    (CHAT, {"frequency_penalty": 3}, "frequency_penalty", "[-2.0, 2.0]"),
    (CHAT, {"repetition_penalty": 0}, "repetition_penalty", "[0.01, 100.0]"),
    (CHAT, {"repetition_penalty": 4.5e-191}, "repetition_penalty", "[0.01, 100.0]"),
    (CHAT, {"seed": 2**64}, "seed", "seed"),
    (CHAT, {"seed": 1.5}, "seed", "integer"),
    (CHAT, {"n": 0}, "n", "greater than or equal to 1"),
    (CHAT, {"n": True}, "n", "integer"),
    (CHAT, {"n": 1000}, "n", "less than or equal to 128"),
    (CHAT, {"stop": 5}, "stop", "string"),
    (CHAT, {"stop": ["a"] * 17}, "stop", "16"),
    (CHAT, {"stop": [""]}, "stop", "empty"),
    (CHAT, {"stream": "yes"}, "stream", "boolean"),
    (CHAT, {"stream_options": {"include_usages": True}}, "stream_options.include_usages", "extra"),
    (CHAT, {"timeout_s": 0}, "timeout_s", "greater than 0"),
    (CHAT, {"timeout_s": 1e9}, "timeout_s", "86400"),
    (CHAT, {"timeout_s": "5"}, "timeout_s", "number"),
    (CHAT, {"cache_retention_s": -1}, "cache_retention_s", "greater than or equal to 0"),
    (CHAT, {"cache_retention_s": 86401}, "cache_retention_s", "86400"),
    (CHAT, {"prompt_cache_key": 5}, "prompt_cache_key", "string"),
    (CHAT, {"prompt_cache_key": "k" * 513}, "prompt_cache_key", "512"),
    (CHAT, {"prompt_cache_retention": "7d"}, "prompt_cache_retention", "'24h'"),
    (CHAT, {"prompt_cache_options": {"mode": "explicit"}}, "prompt_cache_options.mode",
     "'implicit'"),
    (CHAT, {"prompt_cache_options": {"ttl": "1h"}}, "prompt_cache_options.ttl", "'30m'"),
    (CHAT, {"messages": [{**USER[0], "cache_control": {"type": "ephemeral", "ttl": "2h"}}]},
     "messages.0.cache_control.ttl", "'1h'"),
    (CHAT, {"messages": [{**USER[0], "cache_control": {"type": "forever"}}]},
     "messages.0.cache_control.type", "'ephemeral'"),
    (CHAT, {"messages": [{**USER[0], "cache_control": "5m"}]}, "messages.0.cache_control",
     "object"),
    (CHAT, {"messages": [{"role": "user", "content": [
        {"type": "text", "text": "x", "prompt_cache_breakpoint": {"mode": "explicit", "ttl": "1h"}}
    ]}]}, "messages.0.content.0.prompt_cache_breakpoint.ttl", "'12h'"),
    (CHAT, {"priority": 2**31}, "priority", "2147483647"),
    (CHAT, {"logprobs": 3}, "logprobs", "boolean"),
    (CHAT, {"top_logprobs": 3}, "top_logprobs", "set logprobs to true"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "logprobs", "[0, 20]"),
    (CHAT, {"logit_bias": {"a": 1}}, "logit_bias", "token ids"),
    (CHAT, {"logit_bias": {"999999": 1}}, "logit_bias", "allowed is"),
    (CHAT, {"logit_bias": {"1": 101}}, "logit_bias", "[-100.0, 100.0]"),
    (CHAT, {"stop_token_ids": [-1]}, "stop_token_ids", "allowed is"),
    (CHAT, {"stream": True, "prompt_logprobs": 1}, "prompt_logprobs", "stream"),
    (CHAT, {"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "remove"),
    (TEXT, {}, "prompt", "missing"),
    (TEXT, {"prompt": ""}, "prompt", "at least 1"),
    (TEXT, {"prompt": []}, "prompt", "1 to 256"),
    (TEXT, {"prompt": [[]]}, "prompt", "at least 1"),
    (TEXT, {"prompt": ["a", 1]}, "prompt.0", "list of token ids"),
    (TEXT, {"prompt": 5}, "prompt", "a string"),
    (TEXT, {"prompt": [1, 999999]}, "prompt", "token id 999999"),
    (TEXT, {"prompt": [-1]}, "prompt", "token id -1"),
    (TEXT, {"prompt": "x" * 3000}, "prompt", "3000 tokens"),
    (TEXT, {"prompt": "x", "logprobs": True}, "logprobs", "integer"),
]  # fmt: skip


def post(server: ServerProcess, route: str, fields: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    body = {"model": "hashed", **({"messages": USER} if route == CHAT else {}), **fields}
    answer = server.call(route, body)
    return answer.status, answer.json()["error"]


@pytest.mark.parametrize(("route", "fields", "param", "words"), GRID)
def test_a_wrong_field_is_400_and_named(
    hash_server: ServerProcess, route: str, fields: dict[str, Any], param: str, words: str
) -> None:
    status, error = post(hash_server, route, fields)
    assert (status, error["param"], error["type"]) == (400, param, "invalid_request_error")
    assert words in error["message"]
    assert "Traceback" not in error["message"]


def test_a_field_at_its_neutral_value_is_accepted(hash_server: ServerProcess) -> None:
    neutral = {name: values[-1] if values else None for name, values in NEUTRAL.items()}
    nulls = {name: None for name in ChatRequest.model_fields if name not in ("model", "messages")}
    inert = {"user": "me", "metadata": {"a": "b"}}
    body = {"model": "hashed", "messages": USER, **nulls, **neutral, **inert, "max_tokens": 2}
    assert hash_server.call(CHAT, body).status == 200


@pytest.mark.parametrize("size", [3000, 3_000_000])
def test_a_prompt_that_does_not_fit_is_told_in_words_that_make_clients_compact(
    hash_server: ServerProcess, size: int
) -> None:
    fields = {"messages": [{"role": "user", "content": "x" * size}]}
    status, error = post(hash_server, CHAT, fields)
    assert (status, error["code"]) == (400, "context_length_exceeded")
    assert re.search(r"prompt is too long: \d+ tokens > 2047 maximum", error["message"])
    assert "This model's maximum context length is 2048 tokens" in error["message"]


@pytest.mark.parametrize("route", [TEXT, CHAT])
def test_a_longer_answer_than_fits_is_cut_to_what_fits(
    hash_server: ServerProcess, route: str
) -> None:
    said = {"prompt": "x" * 2040} if route == TEXT else {"messages": [dict(USER[0])]}
    if route == CHAT:
        said["messages"][0]["content"] = "x" * 1990
    answer = hash_server.call(route, {"model": "hashed", **said, "max_tokens": 100_000}).json()
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["total_tokens"] == 2048


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"model": "hashed", "prompt": "\xff\xfe"}', "not UTF-8"),
        (b'{"model": "hashed", "prompt": "\\ud800"}', "not valid JSON"),
        (b'{"model": "hashed", "prompt": NaN}', "not valid JSON"),
        (b"[1]", "JSON object is needed"),
        (b"null", "JSON object is needed"),
        (b"\x00\x01\x02", "not valid JSON"),
    ],
)
def test_a_body_that_is_not_json_is_400(hash_server: ServerProcess, raw: bytes, words: str) -> None:
    answer = hash_server.call(TEXT, raw=raw)
    assert answer.status == 400
    assert words in answer.json()["error"]["message"]


def test_unknown_model_route_and_method(hash_server: ServerProcess) -> None:
    unknown = hash_server.call(CHAT, {"model": "gpt", "messages": USER})
    assert (unknown.status, unknown.json()["error"]["code"]) == (404, "model_not_found")
    nowhere = hash_server.call("/v1/nothing", {})
    assert nowhere.status == 404
    assert "/v1/chat/completions, " in nowhere.json()["error"]["message"]
    wrong = hash_server.call(CHAT)
    assert (wrong.status, wrong.headers["allow"]) == (405, "POST")
    assert "use POST" in wrong.json()["error"]["message"]


def test_a_body_over_the_limit_is_413(script_server: ServerProcess) -> None:
    key = {"Authorization": "Bearer secret"}
    answer = script_server.call(TEXT, raw=b" " * (1 << 20) + b"{}", headers=key)
    assert answer.status == 413
    assert "--max-body-mib" in answer.json()["error"]["message"]


def test_a_chunked_body_over_the_limit_is_413(script_server: ServerProcess) -> None:
    connection = http.client.HTTPConnection(script_server.url.removeprefix("http://"), timeout=30)
    chunks = iter([b" " * 65536] * 17)
    headers = {"Authorization": "Bearer secret"}
    connection.request("POST", TEXT, chunks, headers, encode_chunked=True)
    response = connection.getresponse()
    assert response.status == 413
    response.read()
    connection.close()


@pytest.mark.parametrize("stream", [True, False])
def test_a_full_queue_is_429_with_retry_after(script_server: ServerProcess, stream: bool) -> None:
    body = {"model": "scripted", "prompt": "x", "n": 2, "stream": stream}
    key = {"Authorization": "Bearer secret"}
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda _: script_server.call(TEXT, body, headers=key), range(48)))
    full = [answer for answer in answers if answer.status != 200]
    assert full
    for answer in full:
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.json()["error"]["type"] == "rate_limit_error"
    script_server.wait_metric("tokenspeed_blocks_used", 0)


@pytest.mark.parametrize(
    ("route", "fields"),
    [(TEXT, {"prompt": "x", "n": 3}), (TEXT, {"prompt": ["x", "y"], "n": 2}), (CHAT, {"n": 128})],
)
def test_more_choices_than_the_queue_holds_is_400(
    script_server: ServerProcess, route: str, fields: dict[str, Any]
) -> None:
    body = {"model": "scripted", **({"messages": USER} if route == CHAT else {}), **fields}
    answer = script_server.call(route, body, headers={"Authorization": "Bearer secret"})
    assert (answer.status, answer.json()["error"]["param"]) == (400, "n")
    assert "--max-waiting" in answer.json()["error"]["message"]


@pytest.mark.parametrize("path", [TEXT, "/v1/nothing", "/v1/models"])
@pytest.mark.parametrize("key", ["secret", "wrong"])
def test_an_early_refusal_reaches_a_client_that_sends_its_whole_body_first(
    script_server: ServerProcess, path: str, key: str
) -> None:
    status = 401 if key == "wrong" else {TEXT: 413, "/v1/nothing": 404, "/v1/models": 405}[path]
    headers = {"Authorization": f"Bearer {key}"}  # urllib adds Connection: close
    answer = script_server.call(path, raw=b" " * (24 << 20), headers=headers)
    assert answer.status == status


def test_an_upgrade_is_answered_as_http_and_not_logged(hash_server: ServerProcess) -> None:
    headers = {"Connection": "Upgrade", "Upgrade": "websocket"}
    assert hash_server.call("/health", headers=headers).status == 200
    assert "websockets" not in hash_server.log.read_text()


HUGE = 10**400 - 1


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    [
        (TEXT, {"prompt": "x", "best_of": HUGE}, "best_of"),
        (TEXT, {"prompt": "x", "length_penalty": HUGE}, "length_penalty"),
        (TEXT, {"prompt": "x", "temperature": HUGE}, "temperature"),
        (TEXT, {"prompt": "x", "seed": HUGE}, "seed"),
        (TEXT, {"prompt": "x", "cache_salt": "s" * 257}, "cache_salt"),
        (CHAT, {"cache_salt": "s" * 257}, "cache_salt"),
        (CHAT, {"logit_bias": {"1": HUGE}}, "logit_bias"),
        (TEXT, {"prompt": [HUGE]}, "prompt"),
        (TEXT, {"prompt": "x", "x" * 1_000_000: 1}, "x" * 64),
        (TEXT, {"prompt": "x", "best_of": "y" * 1_000_000}, "best_of"),
        (TEXT, {"prompt": "x", "stream_options": {"z" * 100_000: 1}}, "stream_options." + "z" * 64),
        (TEXT, {"prompt": [0] * 3000}, "prompt"),
        (TEXT, {"prompt": [[0]] * 300_000}, "prompt"),
        (TEXT, {"prompt": "x" * 3_000_000}, "prompt"),
        (TEXT, {"prompt": "x", "stop_token_ids": [1] * 2000}, "stop_token_ids"),
        (TEXT, {"prompt": "x", "stop_token_ids": [1] * 1_000_000}, "stop_token_ids"),
        (CHAT, {"messages": USER * 20_000}, "messages"),
        (CHAT, {"chat_template_kwargs": {"a": [1] * 1_000_000}}, "chat_template_kwargs"),
    ],
)  # fmt: skip
def test_a_huge_value_is_a_short_400(
    hash_server: ServerProcess, route: str, fields: dict[str, Any], param: str
) -> None:
    status, error = post(hash_server, route, fields)
    assert (status, error["param"]) == (400, param)
    assert len(error["message"]) < 1100


def test_a_huge_model_name_is_a_short_404(hash_server: ServerProcess) -> None:
    answer = hash_server.call(TEXT, {"model": "m" * 1_000_000, "prompt": "x"})
    assert answer.status == 404
    assert len(answer.body) < 1000


@pytest.mark.parametrize("name", ["prompt", "best_of", "logit_bias", "stop", "tools", "metadata"])
def test_a_deeply_nested_field_is_a_400(hash_server: ServerProcess, name: str) -> None:
    value = "[" * 900 + "]" * 900
    prompt = "" if name == "prompt" else '"prompt": "x", "max_tokens": 1, '
    raw = f'{{"model": "hashed", {prompt}"{name}": {value}}}'.encode()
    assert hash_server.call(TEXT, raw=raw).status == (200 if name == "metadata" else 400)


@pytest.mark.parametrize("name", ["self", "func", "context", "loop", "namespace"])
def test_any_template_variable_is_taken(hash_server: ServerProcess, name: str) -> None:
    body = {"model": "hashed", "messages": USER, "max_tokens": 1, "chat_template_kwargs": {name: 1}}
    assert hash_server.call(CHAT, body).status == 200


@pytest.mark.parametrize(
    ("text", "shown"),
    [("\\ud800", "\\ud800"), ("a\\udc00", "\\udc00"), ("\\\\\\uDBFF\\u0041", "\\uDBFF")],
)
def test_a_lone_surrogate_is_named(hash_server: ServerProcess, text: str, shown: str) -> None:
    raw = f'{{"model": "hashed", "prompt": "{text}"}}'.encode()
    answer = hash_server.call(TEXT, raw=raw)
    assert answer.status == 400
    assert f"lone surrogate {shown}" in answer.json()["error"]["message"]


def test_tokenize_says_what_it_needs(hash_server: ServerProcess) -> None:
    for fields, words in (({}, "neither"), ({"prompt": "x", "messages": USER}, "both")):
        answer = hash_server.call("/tokenize", {"model": "hashed", **fields})
        assert answer.status == 400
        assert f"prompt and messages: {words}" in answer.json()["error"]["message"]


def test_metrics_of_two_api_processes_add_up(script_server: ServerProcess) -> None:
    key = {"Authorization": "Bearer secret"}

    def seen() -> float:
        text = script_server.call("/metrics").body.decode()
        label = '{path="/v1/models",status="200"}'
        lines = [line for line in text.splitlines() if label in line]
        return sum(float(line.split()[1]) for line in lines)

    before = seen()
    for _ in range(20):
        script_server.call("/v1/models", headers=key)
    # An answer is counted after it was sent: the last may be read before it is.
    deadline = time.monotonic() + 60
    while (counted := seen() - before) < 20 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert counted == 20


def test_the_server_is_healthy_after_all_that(hash_server: ServerProcess) -> None:
    assert hash_server.call("/health").json()["status"] == "ok"
    assert "Traceback" not in hash_server.log.read_text()
    hash_server.wait_metric("tokenspeed_blocks_used", 0)
