"""A parent and its sub-agents through HTTP: what the end of one gives back, and what it leaves."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.server import Answer

SYSTEM = "You are one of several agents. " * 20
SESSION = "x-claude-code-session-id"
AGENT = "x-claude-code-agent-id"
SUMS = ("turns", "prompt_tokens", "cached_tokens", "output_tokens")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("released")
    model = write_scripted_model(folder / "hashed", step_ms=2, max_position_embeddings=4096)
    with ServerProcess(model, folder, "--kv-gib", "0.01") as server:
        yield server


class Agent:
    """A main session or a sub-agent, as Claude Code names them."""

    def __init__(self, server: ServerProcess, session: str, agent: str = "") -> None:
        self._server = server
        self.headers = {SESSION: session, **({AGENT: agent} if agent else {})}
        self.name = f"{session}/{agent}" if agent else session
        self._said = [{"role": "system", "content": SYSTEM}]
        self.usage: dict[str, Any] = {}

    def body(self, text: str, max_tokens: int) -> dict[str, Any]:
        said = [*self._said, {"role": "user", "content": text}]
        return {"model": "hashed", "messages": said, "max_tokens": max_tokens, "temperature": 0}

    def turn(self, text: str) -> tuple[int, int]:
        """Run a turn; return (its cached tokens, what the turn before had)."""
        before = self.usage.get("total_tokens", 0)
        body = self.body(text, 12)
        answer = self._server.call("/v1/chat/completions", body, headers=self.headers)
        assert answer.status == 200, answer.body
        self.usage = answer.json()["usage"]
        message = answer.json()["choices"][0]["message"]
        self._said = [*body["messages"], {"role": "assistant", "content": message["content"]}]
        return self.usage["prompt_tokens_details"]["cached_tokens"], before

    def delete(self, query: str = "") -> Answer:
        return self._server.call(f"/v1/sessions/{self.name}{query}", method="DELETE")


def matchable(server: ServerProcess) -> int:
    """Return the blocks that the cache knows, of a picture that is new."""
    time.sleep(0.25)
    state = server.call("/v1/engine/state").json()
    assert state["blocks"]["used"] == 0
    blocks: int = state["blocks"]["groups"][0]["logical"]["matchable"]
    return blocks


def test_closing_one_of_four_sub_agents_frees_exactly_its_own(server: ServerProcess) -> None:
    start = matchable(server)
    main = Agent(server, "main")
    main.turn("Plan the work.")
    agents = [Agent(server, "main", f"agent-{number}") for number in range(4)]
    costs = []
    for number, agent in enumerate(agents):
        before = matchable(server)
        cached, _ = agent.turn(f"{number}: do part {number}. " + "Look well. " * 30)
        assert cached >= len(SYSTEM) // 16 * 16, "the system prompt is the parent's"
        costs.append(matchable(server) - before)

    before = matchable(server)
    answer = agents[1].delete()
    assert answer.status == 200, answer.body
    (freed,) = answer.json()["released"]
    assert freed["session"] == "main/agent-1"
    assert freed["host_bytes"] == 0
    assert before - matchable(server) == costs[1], "exactly its own"
    assert freed["bytes"] % costs[1] == 0
    assert 0 < freed["tokens"] <= costs[1] * 16

    for agent in (main, agents[0], agents[2], agents[3]):
        cached, had = agent.turn("Go on.")
        assert cached == had - 1, "the others' next turns hit as before"
    cached, _ = agents[1].turn("Go on.")
    assert cached < len(SYSTEM) + 40, "of the one that is over, what others begin with too"

    answer = main.delete("?group=true")
    assert answer.status == 200, answer.body
    names = [freed["session"] for freed in answer.json()["released"]]
    assert set(names) == {"main", *(agent.name for agent in agents)}
    assert names[-1] == "main"
    assert matchable(server) == start


def test_a_session_tells_its_sums_and_its_children(server: ServerProcess) -> None:
    main, child = Agent(server, "sums"), Agent(server, "sums", "c")
    main.turn("Hello.")
    cached, _ = main.turn("And now?")
    child.turn("A part.")
    told = server.call("/v1/sessions/sums").json()
    assert (told["session"], told["parent"], told["children"]) == ("sums", None, ["sums/c"])
    assert told["turns"] == 2
    assert told["output_tokens"] == 24
    assert told["cached_tokens"] >= cached > 0
    assert told["prompt_tokens"] > told["cached_tokens"]
    assert server.call("/v1/sessions/sums/c").json()["parent"] == "sums"
    main.delete("?group=true")
    assert server.call("/v1/sessions/sums").status == 404


def test_who_does_not_know_a_session_does_not_reach_it(server: ServerProcess) -> None:
    agent = Agent(server, "mine")
    agent.turn("Hello.")
    for method in ("GET", "DELETE"):
        stranger = {"X-Tenant": "other"}
        answer = server.call("/v1/sessions/mine", method=method, headers=stranger)
        assert answer.status == 404
        assert answer.json()["error"]["code"] == "session_not_found"
        assert server.call("/v1/sessions/none", method=method).status == 404
    assert agent.delete().status == 200


@pytest.mark.parametrize("query", ["?group=maybe", "?groups=true", "?abort="])
def test_a_query_that_is_not_known_is_refused(server: ServerProcess, query: str) -> None:
    answer = server.call(f"/v1/sessions/any{query}", method="DELETE")
    assert answer.status == 400
    assert "group=true|false" in answer.json()["error"]["message"]


def test_a_session_that_runs_is_released_only_by_abort(server: ServerProcess) -> None:
    agent = Agent(server, "busy")
    body = agent.body("Write a lot.", 3000)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(server.call, "/v1/chat/completions", body, headers=agent.headers)
        deadline_s = time.monotonic() + 60
        while (answer := agent.delete()).status == 404:  # it did not reach the engine yet
            assert time.monotonic() < deadline_s
        assert answer.status == 409
        assert answer.json()["live_requests"] == {"busy": 1}
        assert answer.json()["error"]["code"] == "session_busy"
        answer = agent.delete("?abort=true")
        assert answer.status == 200, answer.body
        assert answer.json()["released"][0]["tokens"] > 0
        running.result(60)
    assert agent.delete().status == 404
