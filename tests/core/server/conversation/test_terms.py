"""Priority, tenant, session, time limits and kept prefixes, from HTTP to the engine."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from starlette.requests import Request
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess, run_cli

from tokenspeed.config.schema import ServeConfig
from tokenspeed.errors import ConfigError, RequestError
from tokenspeed.server.conversation.cleaned import cleaned
from tokenspeed.server.conversation.rules import ClientRules
from tokenspeed.server.conversation.sessions import Sessions
from tokenspeed.server.conversation.terms import KEY_TENANT, read_terms
from tokenspeed.server.http.api_keys import read_api_keys
from tokenspeed.server.openai.conversation import conversation_of
from tokenspeed.server.openai.schemas import ChatRequest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tokenspeed.engine.messages import Terms

TEXT = "/v1/completions"
STATE = "/v1/engine/state"


def terms_of(fields: dict[str, Any], *, tenant: str = "", **headers: str) -> Terms:
    """Return the terms of a chat request with these fields and headers."""
    body = {"model": "m", "messages": [{"role": "user", "content": "x"}], **fields}
    scope = {
        "type": "http",
        "headers": [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ],
        KEY_TENANT: tenant,
    }
    chat = ChatRequest.model_validate(body)
    said = cleaned(conversation_of(chat), ClientRules())
    return read_terms(chat, Request(scope), Sessions(), said)


def text(**mark: Any) -> dict[str, Any]:
    """A message of one text part with a mark."""
    return {"role": "user", "content": [{"type": "text", "text": "x", **mark}]}


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ({}, 0),
        ({"cache_retention_s": 12.5}, 12.5),
        ({"prompt_cache_retention": "24h"}, 86400),
        ({"prompt_cache_retention": "in_memory"}, 0),
        ({"prompt_cache_options": {"ttl": "30m"}}, 1800),
        ({"prompt_cache_options": {}}, 1800),
        ({"messages": [text(cache_control={"type": "ephemeral"})]}, 300),
        ({"messages": [text(cache_control={"type": "ephemeral", "ttl": "1h"}), text()]}, 3600),
        ({"messages": [{**text(), "cache_control": {"type": "ephemeral", "ttl": "5m"}}]}, 300),
        ({"messages": [text(prompt_cache_breakpoint={"mode": "explicit"})]}, 1800),
        ({"messages": [text(prompt_cache_breakpoint={"mode": "explicit", "ttl": "12h"})]}, 43200),
        ({"cache_retention_s": 400, "messages": [text(cache_control={"type": "ephemeral"})]}, 400),
    ],
)
def test_the_longest_retention_asked_for_counts(fields: dict[str, Any], seconds: float) -> None:
    assert terms_of(fields).retain_s == seconds


def test_the_session_is_the_cache_key_or_what_agents_send() -> None:
    assert terms_of({}).session.startswith("chat:")
    assert terms_of({}, x_claude_code_session_id="c").session == "c"
    assert terms_of({}, session_id="codex", x_claude_code_session_id="c").session == "codex"
    assert terms_of({"prompt_cache_key": "k"}, session_id="codex").session == "k"
    assert len(terms_of({}, x_session_id="s" * 5000).session) == 512


def test_the_tenant_is_the_keys_or_the_headers_and_never_two() -> None:
    assert terms_of({}).tenant == ""
    assert terms_of({}, x_tenant="team-a").tenant == "team-a"
    assert terms_of({}, tenant="paid", x_tenant="paid").tenant == "paid"
    assert terms_of({}, tenant="paid").tenant == "paid"
    with pytest.raises(RequestError, match="is that of tenant 'paid'"):
        terms_of({}, tenant="paid", x_tenant="other")
    for name in ("x" * 65, "a\x07b", "\u00e9"):
        with pytest.raises(RequestError, match="64 printable"):
            terms_of({}, x_tenant=name)


def keys_file(folder: Path, content: str) -> ServeConfig:
    """Settings with a file of keys."""
    path = folder / "keys"
    path.write_text(content)
    return ServeConfig(api_key="plain", api_keys_file=str(path))


def test_each_key_has_its_tenant(tmp_path: Path) -> None:
    keys = read_api_keys(keys_file(tmp_path, "# two\nteam-a  k1\n\nteam-b\tk=2==\nteam-a k3\n"))
    tenants = [keys.tenant_of(f"Bearer {key}") for key in ("plain", "k1", "k=2==", "k3", "", "k")]
    assert tenants == ["", "team-a", "team-b", "team-a", None, None]
    assert keys.tenant_of("k1") is None
    assert not read_api_keys(ServeConfig())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("team-a\n", "line 1 is not"),
        ("a k\n# x\nb k\n", "line 3 repeats a key"),
        ("a k l\n", "line 1 is not"),
        ("# nothing\n", "holds no key"),
        ("x" * 65 + " secret-key\n", "line 1 is not"),
    ],
)
def test_a_wrong_file_of_keys_is_named_without_its_keys(
    tmp_path: Path, content: str, words: str
) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        read_api_keys(keys_file(tmp_path, content))
    assert "secret-key" not in str(caught.value)


def test_a_missing_file_of_keys_stops_the_start(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model")
    done = run_cli("serve", str(model), "--api-keys-file", str(tmp_path / "none"))
    assert done.returncode == 2
    assert "cannot be read" in done.stderr


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One slow request at a time; keys with tenants."""
    folder = tmp_path_factory.mktemp("terms")
    model = write_scripted_model(folder / "slow", step_ms=20, max_position_embeddings=2048)
    (folder / "keys").write_text("team-a key-a\nteam-b key-b\n")
    flags = ("--max-running", "1", "--api-keys-file", str(folder / "keys"))
    with ServerProcess(model, folder, *flags) as server:
        yield server


KEY_A = {"Authorization": "Bearer key-a"}
KEY_B = {"Authorization": "Bearer key-b"}
BODY = {"model": "slow", "prompt": "abc", "max_tokens": 1500}


def test_the_state_shows_tenant_and_session(server: ServerProcess) -> None:
    body = {**BODY, "timeout_s": 2, "prompt_cache_key": "talk-1", "priority": 3}
    reader = threading.Thread(target=server.call, args=(TEXT, body), kwargs={"headers": KEY_B})
    reader.start()
    deadline_s = time.monotonic() + 60
    while not (running := server.call(STATE, headers=KEY_A).json()["requests"]):
        assert time.monotonic() < deadline_s
    reader.join()
    shown = [running[0][name] for name in ("tenant", "session", "priority")]
    assert shown == ["team-b", "talk-1", 3]


def test_a_foreign_tenant_is_400_and_a_wrong_key_401(server: ServerProcess) -> None:
    wrong = server.call(TEXT, BODY, headers={**KEY_A, "X-Tenant": "team-b"})
    assert (wrong.status, wrong.json()["error"]["param"]) == (400, "X-Tenant")
    assert server.call(TEXT, BODY, headers={"Authorization": "Bearer key-c"}).status == 401


def test_an_answer_beyond_its_time_limit_is_504(server: ServerProcess) -> None:
    started_s = time.monotonic()
    answer = server.call(TEXT, {**BODY, "timeout_s": 0.3}, headers=KEY_A)
    assert (answer.status, answer.json()["error"]["type"]) == (504, "timeout_error")
    assert "timeout_s" in answer.json()["error"]["message"]
    assert time.monotonic() - started_s < 25, "the whole answer takes 30 s"


def test_a_time_limit_after_the_streams_start_is_its_last_event(server: ServerProcess) -> None:
    answer = server.call(TEXT, {**BODY, "timeout_s": 1.5, "stream": True}, headers=KEY_A)
    events = answer.body.decode().strip().split("\n\n")
    assert answer.status == 200
    assert sum(line.startswith('data: {"id"') for line in events) > 5, "tokens came before"
    assert events[-1].startswith('data: {"error":{"message":"the request')
    assert '"type":"timeout_error"' in events[-1]
    server.wait_metric("tokenspeed_blocks_used", 0)


@pytest.fixture(scope="module")
def short_queue_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One slow request at a time; others wait 1.5 s at most."""
    folder = tmp_path_factory.mktemp("queue")
    model = write_scripted_model(folder / "slow", step_ms=20, max_position_embeddings=2048)
    with ServerProcess(model, folder, "--max-running", "1", "--max-queue-s", "1.5") as server:
        yield server


def test_a_wait_beyond_the_queue_limit_is_429_and_in_a_started_stream_its_last_event(
    short_queue_server: ServerProcess,
) -> None:
    server = short_queue_server
    server.wait_metric("tokenspeed_running", 0)  # figures of another test's request are over
    with ThreadPoolExecutor(3) as pool:
        running = pool.submit(server.call, TEXT, {**BODY, "max_tokens": 150})
        server.wait_metric("tokenspeed_running", 1)
        whole = pool.submit(server.call, TEXT, {**BODY, "max_tokens": 9})
        stream = pool.submit(server.call, TEXT, {**BODY, "max_tokens": 9, "stream": True})
        assert whole.result().status == 429
        assert int(whole.result().headers["retry-after"]) >= 1
        events = stream.result().body.decode().strip().split("\n\n")
        assert stream.result().status == 200, "it began before the refusal"
        assert '"type":"rate_limit_error"' in events[-1]
        assert running.result().status == 200
