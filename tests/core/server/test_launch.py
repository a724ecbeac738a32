"""The launcher: ports, signals, dead processes, wrong models."""

from __future__ import annotations

import os
import signal
import socket
import time
from typing import TYPE_CHECKING

from tests.support.processes import wait_gone
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess, run_cli

if TYPE_CHECKING:
    from pathlib import Path


def test_a_port_in_use_is_named_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_cli("serve", str(tmp_path), "--port", str(port))
    assert done.returncode == 2
    assert f"cannot listen on 127.0.0.1:{port}: the port is in use" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_missing_model_is_one_clear_line_and_leaves_nothing_running(tmp_path: Path) -> None:
    done = run_cli("serve", str(tmp_path / "no-model"), "--port", "0")
    assert done.returncode == 2
    assert "no-model" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_signals_and_deaths(tmp_path: Path) -> None:
    """One server after the other, because each costs seconds to start."""
    model = write_scripted_model(tmp_path / "model", step_ms=20)
    with ServerProcess(model, tmp_path, "--api-workers", "2") as server:
        children = server.children()
        assert len(children) == 3
        with _open_stream(server) as stream:
            stream.recv(100)
            started_s = time.monotonic()
            assert server.stop(signal.SIGINT) == 0
        assert time.monotonic() - started_s < 30, "the stream would have taken 40 s"
        assert wait_gone(children) == []
        assert "Traceback" not in server.log.read_text()

    server = ServerProcess(model, tmp_path)
    children = server.children()
    server.process.kill()
    server.process.wait()
    assert wait_gone(children) == []


def test_answers_survive_a_killed_engine_and_a_killed_api_process_is_replaced(
    tmp_path: Path,
) -> None:
    model = write_scripted_model(tmp_path / "model", step_ms=10)
    body = {"model": "model", "prompt": "abc", "max_tokens": 60, "temperature": 0}
    with ServerProcess(model, tmp_path) as server:
        calm = server.call("/v1/completions", body).json()["choices"][0]["text"]
        with (
            _open_stream(server, max_tokens=60) as streamed,
            _open_stream(server, stream=False, max_tokens=60) as whole,
        ):
            time.sleep(0.3)
            os.kill(_child(server, b"engine.process"), signal.SIGKILL)
            assert _text(streamed) == _text(whole) == calm

        victim = _child(server, b"api_process")
        os.kill(victim, signal.SIGKILL)
        assert wait_gone([victim]) == []
        # The listening socket stays open in the launcher: the request waits for the new process.
        assert server.call("/v1/completions", body).json()["choices"][0]["text"] == calm
        assert "restarted" in server.log.read_text()


def _text(connection: socket.socket) -> str:
    """Read an answer to its end and return its text."""
    raw = b""
    while b'"finish_reason":"length"' not in raw:
        raw += connection.recv(65536)
    return b"".join(_texts(raw)).decode()


def _texts(raw: bytes) -> list[bytes]:
    return [part.split(b'","logprobs')[0] for part in raw.split(b'"text":"')[1:]]


def _open_stream(
    server: ServerProcess, *, stream: bool = True, max_tokens: int = 2000
) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    connection = socket.create_connection((host, int(port)), timeout=60)
    flag = "true" if stream else "false"
    body = (
        f'{{"model":"model","prompt":"abc","max_tokens":{max_tokens},"temperature":0,'
        f'"stream":{flag}}}'
    )
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall((head + body).encode())
    return connection


def _child(server: ServerProcess, words: bytes) -> int:
    """Return the process id of the child whose command line holds `words`."""
    for pid in server.children():
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            if words in file.read():
                return pid
    raise AssertionError(f"no child {words!r}")
