"""Why a match ended, planted cause by cause, and what sessions add up to: through HTTP."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = "/v1/completions"
STATE = "/v1/engine/state"
SUMS = ("prompts", "cached_tokens", "created_tokens", "recomputed_tokens")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """About 190 blocks of 16 tokens; a step of 64 tokens takes 32 ms."""
    folder = tmp_path_factory.mktemp("truth")
    model = write_scripted_model(folder / "hashed", token_us=500, max_position_embeddings=2048)
    flags = ("--max-step-tokens", "64", "--kv-gib", "0.0004")
    with ServerProcess(model, folder, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def state_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A model with a recurrent layer."""
    folder = tmp_path_factory.mktemp("states")
    model = write_scripted_model(folder / "hashed", state_layers=1)
    with ServerProcess(model, folder, "--kv-gib", "0.001") as server:
        yield server


def text(name: str, size: int) -> str:
    """Return a prompt of one token a character that shares no block with those of other names."""
    return (name + "abcdefghijklmnopqrstuvwxyz" * (size // 26 + 1))[:size]


def truth_of(server: ServerProcess, prompt: str, **fields: Any) -> tuple[str, int, int]:
    """Run a prompt; return why and where its match ended, and how much was cached."""
    body = {"model": "hashed", "prompt": prompt, "max_tokens": 2, "temperature": 0, **fields}
    answer = server.call(TEXT, body)
    assert answer.status == 200, answer.body
    details = answer.json()["usage"]["prompt_tokens_details"]
    (end,) = details["match_ends"]
    created = details["cache_write_tokens"]
    assert details["cached_tokens"] + created == len(prompt)
    assert details["recomputed_tokens"] <= created
    return end["reason"], end["position"], details["cached_tokens"]


def test_each_planted_cause_has_its_label_and_position(server: ServerProcess) -> None:
    prompt = text("never", 100)
    assert truth_of(server, prompt, prompt_cache_key="s") == ("never_stored", 0, 0)
    assert truth_of(server, prompt, prompt_cache_key="s") == ("complete", 99, 99)
    changed = prompt[:37] + "#" + prompt[38:]
    assert truth_of(server, changed, prompt_cache_key="s") == ("content", 37, 37)
    assert truth_of(server, prompt, echo=True, logprobs=1) == ("disabled", 0, 0)
    for name in ("one", "two"):
        truth_of(server, text(name, 1900))
    assert truth_of(server, prompt) == ("evicted", 0, 0)


@pytest.fixture(scope="module")
def keyed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A key without a tenant, which may speak for any, and one of a tenant."""
    folder = tmp_path_factory.mktemp("keyed")
    model = write_scripted_model(folder / "hashed")
    (folder / "keys").write_text("team-a key-a\n")
    flags = ("--api-key", "gateway", "--api-keys-file", str(folder / "keys"))
    with ServerProcess(model, folder, *flags) as server:
        yield server


def reasons(server: ServerProcess, *turns: tuple[str, str, str, str], session: str) -> list[str]:
    """Run turns of one session, each (key, tenant, salt, prompt); return why each match ended."""
    ends = []
    for key, tenant, salt, prompt in turns:
        headers = {"Authorization": f"Bearer {key}", **({"X-Tenant": tenant} if tenant else {})}
        body = {"model": "hashed", "prompt": prompt, "max_tokens": 2, "cache_salt": salt}
        named = {"prompt_cache_key": session} if session else {}
        answer = server.call(TEXT, {**body, **named}, headers=headers)
        assert answer.status == 200, answer.body
        (end,) = answer.json()["usage"]["prompt_tokens_details"]["match_ends"]
        ends.append(end["reason"])
    return ends


def test_another_salt_and_another_tenant_have_their_labels(keyed_server: ServerProcess) -> None:
    prompt = text("scopes", 100)
    turns = [("gateway", "t1", "a", prompt), ("gateway", "t1", "b", prompt)]
    assert reasons(keyed_server, *turns, session="s1") == ["never_stored", "salt"]
    turns = [("gateway", "t1", "c", prompt), ("gateway", "t2", "d", prompt)]
    assert reasons(keyed_server, *turns, session="s2") == ["never_stored", "tenant_or_adapter"]


def test_a_label_tells_nothing_of_what_another_salt_holds(keyed_server: ServerProcess) -> None:
    """A right guess and a wrong one get the same answer, also for sessions without a name."""
    secret, wrong = text("secret", 100), text("guess", 100)
    for index, guess in enumerate((secret, wrong)):
        turns = [("gateway", "", f"a{index}", secret), ("gateway", "", f"b{index}", guess)]
        assert reasons(keyed_server, *turns, session=f"named-{index}")[1] == "salt"
        chat = {"model": "hashed", "max_tokens": 2}
        for salt, content in ((f"c{index}", secret), (f"d{index}", guess)):
            body = {**chat, "cache_salt": salt, "messages": [{"role": "user", "content": content}]}
            answer = keyed_server.call(
                "/v1/chat/completions", body, headers={"Authorization": "Bearer gateway"}
            )
            (end,) = answer.json()["usage"]["prompt_tokens_details"]["match_ends"]
            assert end["reason"] == "never_stored"


def test_a_session_of_another_keys_holder_is_another_session(keyed_server: ServerProcess) -> None:
    prompt = text("holders", 100)
    changed = prompt[:37] + "#" + prompt[38:]
    turns = [("gateway", "team-a", "x", prompt), ("key-a", "", "y", changed)]
    assert reasons(keyed_server, *turns, session="shared name") == ["never_stored"] * 2


def test_what_another_request_is_computing_is_told(server: ServerProcess) -> None:
    """Who is of higher priority does not wait for it."""
    for attempt in range(10):  # on a busy machine the second may come too late
        prompt = text(f"{attempt} computing", 1900)
        with ThreadPoolExecutor(1) as pool:
            owner = pool.submit(truth_of, server, prompt)
            while not (owner.done() or server.call(STATE).json()["requests"]):
                pass
            reason, position, cached = truth_of(server, prompt, priority=1)
            assert owner.result() == ("never_stored", 0, 0)
        if reason != "complete":
            break
    assert (reason, position) == ("computing", cached)
    assert 0 <= cached < 1899


def test_no_snapshot_lies_where_the_texts_part(state_server: ServerProcess) -> None:
    prompt = text("state", 80)
    truth_of(state_server, prompt)
    assert truth_of(state_server, prompt[:40] + "#" * 40) == ("no_snapshot", 0, 0)


def test_sums_of_sessions_are_those_of_all(server: ServerProcess) -> None:
    for turn in (1, 2, 3):
        for session in ("x", "y"):
            truth_of(server, text(session, 60 * turn), prompt_cache_key=session)
    time.sleep(0.2)  # a picture may be a tenth of a second old
    state = server.call(STATE).json()
    for name in SUMS:
        for division in ("sessions", "roots", "tenants"):
            assert sum(item[name] for item in state[division]) == state["cache"][name]
    assert sum(state["match_ends"].values()) == state["cache"]["prompts"]
    for name in ("cached_tokens", "created_tokens", "recomputed_tokens"):
        server.wait_metric(f"tokenspeed_{name}_total", state["cache"][name])
    sessions = {item["session"]: item for item in state["sessions"]}
    assert sessions["x"]["prompts"] == 3
    assert sessions["x"]["cached_tokens"] > 0


def test_sub_agents_and_tenants_have_sums_of_their_own(server: ServerProcess) -> None:
    prompt = text("family", 200)
    body = {"model": "hashed", "prompt": prompt, "max_tokens": 2}
    main = {"X-Claude-Code-Session-Id": "main", "X-Tenant": "team"}
    for headers in (main, {**main, "X-Claude-Code-Agent-Id": "sub"}, {**main, "X-Tenant": "other"}):
        assert server.call(TEXT, body, headers=headers).status == 200
    time.sleep(0.2)  # a picture may be a tenth of a second old
    state = server.call(STATE).json()
    sessions = {item["session"]: item for item in state["sessions"]}
    roots = {item["root"]: item for item in state["roots"]}
    tenants = {item["tenant"]: item for item in state["tenants"]}
    assert (sessions["main"]["parent"], sessions["main"]["root"]) == ("", "main")
    assert (sessions["main/sub"]["parent"], sessions["main/sub"]["root"]) == ("main", "main")
    assert (roots["main"]["prompts"], roots["main"]["cached_tokens"]) == (3, 199)
    assert (tenants["team"]["cached_tokens"], tenants["other"]["cached_tokens"]) == (199, 0)
