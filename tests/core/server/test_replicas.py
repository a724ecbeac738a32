"""A real server of several replicas: what was one engine's is N engines', and none outlives it."""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess, run_cli

REPLICAS = 2
STREAMS = 8
FLAGS = ("--replicas", str(REPLICAS), "--kv-gib", "0.001", "--api-workers", "2")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("replicas")
    model = write_scripted_model(folder / "model", step_ms=5)
    with ServerProcess(model, folder, *FLAGS) as server:
        yield server


def ask(server: ServerProcess, prompt: str, session: str = "", max_tokens: int = 12) -> str:
    """Return an answer's text."""
    body = {"model": "model", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    headers = {"X-Dynamo-Session-ID": session} if session else {}
    answer = server.call("/v1/completions", body, headers=headers)
    assert answer.status == 200, answer.body
    text: str = answer.json()["choices"][0]["text"]
    return text


def ask_many(server: ServerProcess, max_tokens: int) -> list[str]:
    """Return the answers of several prompts, asked at once."""
    found = [""] * STREAMS

    def one(index: int) -> None:
        found[index] = ask(server, f"{index} tell me " * 9, f"s{index}", max_tokens)

    threads = [threading.Thread(target=one, args=(index,)) for index in range(STREAMS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def each_replicas(text: str, name: str) -> list[float]:
    """Return a metric of each replica."""
    return [float(value) for value in re.findall(rf'^{name}{{replica="\d"}} (\S+)$', text, re.M)]


def engines(server: ServerProcess) -> list[int]:
    """Return the process ids of the engines."""
    return [pid for pid in server.children() if b"engine.process" in command_of(pid)]


def command_of(pid: int) -> bytes:
    """Return a process's command line; empty: it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return b""


def wait_until(holds: object, timeout_s: float = 60.0) -> None:
    """Wait until a callable returns true."""
    deadline_s = time.monotonic() + timeout_s
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline_s, "it did not come about"
        time.sleep(0.05)


def test_requests_spread_and_figures_are_told_by_replica_and_in_sum(
    server: ServerProcess,
) -> None:
    ask_many(server, 12)

    def is_told(text: str) -> bool:
        each = each_replicas(text, "tokenspeed_replica_prompt_tokens_total")
        total = re.search(r"^tokenspeed_prompt_tokens_total (\S+)$", text, re.M)
        is_sum = total is not None and float(total[1]) == sum(each)
        return len(each) == REPLICAS and min(each) > 0 and is_sum

    text = server.metrics_where(is_told)
    assert sum(each_replicas(text, "tokenspeed_router_requests_total")) == STREAMS
    assert each_replicas(text, "tokenspeed_replica_up") == [1.0] * REPLICAS


def test_the_state_is_that_of_all_and_top_draws_each(server: ServerProcess) -> None:
    ask(server, "hello", "s0")
    state = server.call("/v1/engine/state").json()
    assert [replica["replica"] for replica in state["replicas"]] == [0, 1]
    finished = [replica["counters"]["finished"] for replica in state["replicas"]]
    assert state["counters"]["finished"] == sum(finished) > 0
    shown = run_cli("top", server.url, "--once")
    assert shown.returncode == 0, shown.stderr
    assert re.search(r"^replica 0 .*running 0", shown.stdout, re.M)
    assert re.search(r"^replica 1 .*running 0", shown.stdout, re.M)


def test_a_session_is_told_and_released_wherever_it_is(server: ServerProcess) -> None:
    ask(server, "a long story " * 20, "story")
    ask(server, "a long story " * 20 + "goes on", "story")
    told = server.call("/v1/sessions/story").json()
    assert told["turns"] == 2
    assert told["cached_tokens"] > 200, "the second turn went where the first one was"
    released = server.call("/v1/sessions/story", method="DELETE").json()["released"]
    assert [item["session"] for item in released] == ["story"]
    assert released[0]["tokens"] >= 12
    assert server.call("/v1/sessions/story").status == 404


def test_a_tenants_floor_is_shared_out(server: ServerProcess) -> None:
    figures = {"floor_bytes": 100_000, "cap_bytes": 400_000}
    (tenant,) = server.call("/tenants/t", figures, method="PUT").json()["tenants"]
    assert (tenant["floor_bytes"], tenant["cap_bytes"]) == (100_000, 400_000)
    each = server.call("/tenants").json()["tenants"]
    assert [item["name"] for item in each] == ["t"]
    assert server.call("/tenants/t", {}, method="PUT").json()["tenants"] == []


def test_one_replica_is_killed_and_started_again_while_the_other_serves(
    server: ServerProcess,
) -> None:
    expected = ask_many(server, 40)
    victim = engines(server)[0]
    killer = threading.Timer(0.08, os.kill, (victim, signal.SIGKILL))
    killer.start()
    assert ask_many(server, 40) == expected
    killer.join()
    wait_until(lambda: server.call("/health").json()["status"] == "ok")
    assert len(engines(server)) == REPLICAS
    assert ask_many(server, 40) == expected


def test_a_server_without_one_of_its_replicas_is_degraded_and_serves(
    server: ServerProcess,
) -> None:
    os.kill(engines(server)[0], signal.SIGKILL)
    wait_until(lambda: server.call("/health").json()["status"] == "degraded")
    health = server.call("/health")
    assert health.status == 200
    assert "is being started again" in health.json()["reason"]
    assert ask(server, "still here?")
    wait_until(lambda: server.call("/health").json()["status"] == "ok")
    epochs = [item["engine_epoch"] for item in server.call("/health").json()["replicas"]]
    assert max(epochs) > 1


@pytest.mark.parametrize(
    "signal_number",
    [
        signal.SIGKILL,
        pytest.param(signal.SIGINT, marks=pytest.mark.slow),
        pytest.param(signal.SIGTERM, marks=pytest.mark.slow),
    ],
)
def test_no_process_outlives_the_launcher(tmp_path: Path, signal_number: int) -> None:
    model = write_scripted_model(tmp_path / "model")
    server = ServerProcess(model, tmp_path, *FLAGS)
    children = server.children()
    assert len(children) == REPLICAS + 2
    server.stop(signal_number)
    wait_until(lambda: not any(command_of(pid) for pid in children))


def test_a_replica_that_cannot_start_ends_the_start_with_its_reason(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model")
    with pytest.raises(AssertionError, match=r"kv_gib|no memory|cache"):
        ServerProcess(model, tmp_path, "--replicas", "2", "--kv-gib", "0.0000001")
