"""GET /v1/engine/state and `tokenspeed top` against real servers."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess, run_cli

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

STATE = "/v1/engine/state"
KEY = {"Authorization": "Bearer secret"}


@pytest.fixture
def busy_server(hash_server: ServerProcess) -> Iterator[ServerProcess]:
    """Sixteen requests that run, and some in the queue."""
    body = {"model": "hashed", "prompt": "hello " * 8, "max_tokens": 1500, "n": 19, "stream": True}
    with subprocess.Popen(_reader_of(hash_server.url, body)) as client:
        hash_server.wait_metric("tokenspeed_running", 16)
        yield hash_server
        client.kill()
    hash_server.wait_metric("tokenspeed_blocks_used", 0)


def _reader_of(url: str, body: dict[str, Any]) -> list[str]:
    """Return a command that reads a stream until it is killed, as a client that goes away."""
    code = (
        "import sys, urllib.request as r\n"
        "request = r.Request(sys.argv[1] + '/v1/completions', sys.argv[2].encode(),"
        " {'Content-Type': 'application/json'})\n"
        "for _ in r.urlopen(request): pass\n"
    )
    return [sys.executable, "-c", code, url, json.dumps(body)]


def test_the_state_names_requests_queue_blocks_and_plan(busy_server: ServerProcess) -> None:
    state = busy_server.call(STATE).json()
    assert (len(state["requests"]), len(state["queue"])) == (16, 3)
    assert {item["state"] for item in state["requests"]} <= {"Prefilling", "Decoding"}
    for item in (*state["requests"], *state["queue"]):
        assert item["id"].startswith("cmpl-")
        assert item["prompt_tokens"] == 48
        assert item["age_s"] > 0
    assert [item["position"] for item in state["queue"]] == [0, 1, 2]
    assert (
        state["blocks"]["used"] + state["blocks"]["cached"] + state["blocks"]["free"]
        == (state["blocks"]["total"])
    )
    assert state["blocks"]["groups"][0]["used"] == state["blocks"]["used"]
    assert state["last_plan"]["rows"] <= 16
    assert state["limits"]["max_running"] == 16


def test_the_state_needs_the_key_and_every_api_process_tells_it(
    script_server: ServerProcess,
) -> None:
    assert script_server.call(STATE).status == 401
    answers = [script_server.call(STATE, headers=KEY) for _ in range(12)]
    assert {answer.status for answer in answers} == {200}
    assert {answer.json()["epoch"] for answer in answers} == {1}
    assert script_server.call(STATE, {}, headers=KEY).status == 405


def test_top_once_is_plain_text_with_every_request(busy_server: ServerProcess) -> None:
    done = run_cli("top", f"{busy_server.url}/v1", "--once")
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "running 16/16  queue 3" in done.stdout
    assert done.stdout.count("cmpl-") == 16 + 3
    assert "device      [" in done.stdout


def test_top_json_is_the_state_itself(busy_server: ServerProcess) -> None:
    done = run_cli("top", busy_server.url, "--once", "--json")
    assert json.loads(done.stdout).keys() == busy_server.call(STATE).json().keys()


def test_top_in_a_pipe_prints_picture_after_picture_and_ends_at_a_signal(
    busy_server: ServerProcess,
) -> None:
    command = [sys.executable, "-m", "tokenspeed", "top", busy_server.url, "--interval", "0.1"]
    with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE, text=True) as top:
        assert top.stdout is not None
        first = second = json.loads(top.stdout.readline())
        while second["counters"]["output_tokens"] == first["counters"]["output_tokens"]:
            second = json.loads(top.stdout.readline())  # a step may take longer
        top.send_signal(signal.SIGINT)
        assert top.wait(60) == 0
    assert second["counters"]["output_tokens"] > first["counters"]["output_tokens"]


def test_top_on_a_small_terminal_redraws_in_place_and_leaves_it_clean(
    busy_server: ServerProcess,
) -> None:
    seen = _on_terminal(busy_server.url, lines=10, columns=60, until=b"16/16")
    assert seen.startswith(b"\x1b[?1049h"), "a screen of its own"
    assert seen.endswith(b"\x1b[?25h\x1b[?1049l"), "cursor and screen are given back"
    assert seen.split(b"\x1b[H")[2].count(b"\r\n") == 9, "not a line more than there are"
    assert b"Decoding" in seen
    assert b"Traceback" not in seen


def test_top_waits_for_a_server_that_is_gone(tmp_path: Path) -> None:
    assert run_cli("top", "http://127.0.0.1:9", "--once").returncode == 1
    model = write_scripted_model(tmp_path / "model", script="x")
    with ServerProcess(model, tmp_path) as server:
        server.stop()
        seen = _on_terminal(server.url, lines=24, columns=100, until=b"Trying again")
    assert b"is a server there?" in seen


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("--interval", "0"), 2, "0.1 to 3600.0 s"),
        (("ftp://x",), 2, "http://HOST:PORT"),
        (("http://127.0.0.1:9", "--once"), 1, "is a server there?"),
        (("http://x:port", "--once"), 2, "http://HOST:PORT"),
    ],
)
def test_top_names_what_is_wrong(arguments: tuple[str, ...], code: int, words: str) -> None:
    done = run_cli("top", *arguments)
    assert (done.returncode, len(done.stderr.splitlines())) == (code, 1), done.stderr
    assert words in done.stderr


def test_top_without_the_key_ends_with_the_servers_words(script_server: ServerProcess) -> None:
    done = run_cli("top", script_server.url)
    assert done.returncode == 1
    assert "pass --api-key" in done.stderr


def _on_terminal(url: str, *, lines: int, columns: int, until: bytes) -> bytes:
    """Run a live `top` on a terminal until it shows something; return all that it wrote."""
    ours, theirs = pty.openpty()
    environ = {**os.environ, "TERM": "xterm", "LINES": str(lines), "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "tokenspeed", "top", url, "--interval", "0.2"]
    seen = b""
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environ) as top:
        os.close(theirs)
        deadline_s = time.monotonic() + 60
        while until not in seen and time.monotonic() < deadline_s:
            seen += _read(ours)
        top.send_signal(signal.SIGINT)
        while chunk := _read(ours):  # it cannot end while nobody reads what it writes
            seen += chunk
        top.terminate()
    os.close(ours)
    assert until in seen
    assert top.returncode == 0
    return seen


def _read(descriptor: int) -> bytes:
    if not select.select([descriptor], [], [], 0.5)[0]:
        return b""
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other end is closed
        return b""
