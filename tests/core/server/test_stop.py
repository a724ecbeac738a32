"""Ends of a server: two signals at once, a whole process group, unread output, running streams."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess

from tokenspeed.server.http.signals import SAME_WISH_S, StopSignals

if TYPE_CHECKING:
    from pathlib import Path

BODY = {"model": "model", "prompt": "abc", "max_tokens": 4000, "stream": True}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_scripted_model(tmp_path / "model", step_ms=20, max_position_embeddings=8192)


def test_a_group_signal_ends_streams_with_an_error_and_logs_none(
    model: Path, tmp_path: Path
) -> None:
    bodies: list[bytes] = []
    with ServerProcess(model, tmp_path, new_session=True) as server:
        reader = threading.Thread(
            target=lambda: bodies.append(server.call("/v1/completions", BODY).body)
        )
        reader.start()
        server.wait_metric("tokenspeed_running", 1)
        os.killpg(server.process.pid, signal.SIGINT)
        os.killpg(server.process.pid, signal.SIGTERM)
        started_s = time.monotonic()
        assert server.process.wait(60) == 0
        assert time.monotonic() - started_s < 60, "the stream would have taken 80 s"
        reader.join(60)
    events = bodies[0].decode().strip().split("\n\n")
    assert events[-1].startswith('data: {"error":{"message":"the server stops')
    log = server.log.read_text()
    assert "ERROR" not in log
    assert log.count("kernels    ") == 1, "no engine is started again during the stop"


def test_an_answer_that_is_not_streamed_is_503_when_a_stop_cuts_it(
    model: Path, tmp_path: Path
) -> None:
    with ServerProcess(model, tmp_path) as server, ThreadPoolExecutor(1) as pool:
        whole = pool.submit(server.call, "/v1/completions", {**BODY, "stream": False})
        server.wait_metric("tokenspeed_running", 1)
        assert server.stop() == 0
        answer = whole.result(60)
    assert answer.status == 503
    assert answer.json()["error"]["type"] == "server_error"
    assert "the server stops before the answer is complete" in answer.json()["error"]["message"]
    assert "ERROR" not in server.log.read_text()


def test_bench_ends_with_its_server_at_a_signal(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tokenspeed", "bench", "load", str(model), "--requests", "4"]
    command += ["--output-tokens", "4000", "--server-options=--plugins sdk --block-tokens 16"]
    environ = {**os.environ, "TOKENSPEED_CACHE_DIR": str(tmp_path / "cache")}
    for signals in ((signal.SIGTERM,), (signal.SIGINT, signal.SIGINT)):
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environ, start_new_session=True
        ) as bench:
            assert bench.stderr is not None
            head = next(line for line in bench.stderr if line.startswith("ready"))
            assert "http://" in head
            for number in signals:
                # A signal to bench alone, then one to the group as a terminal sends it.
                if len(signals) == 1:
                    bench.send_signal(number)
                else:
                    os.killpg(bench.pid, number)
            assert bench.wait(60) == 130
            assert "Traceback" not in bench.stderr.read(), "reads to the end of all holders"


def test_a_server_whose_output_nobody_reads_serves(model: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tokenspeed", "serve", str(model), "--port", "0"]
    command += ["--plugins", "sdk", "--block-tokens", "16"]
    environ = {**os.environ, "TOKENSPEED_CACHE_DIR": str(tmp_path / "cache")}
    with subprocess.Popen(command, stderr=subprocess.PIPE, env=environ) as server:
        assert server.stderr is not None
        server.stderr.readline()
        server.stderr.close()
        deadline_s = time.monotonic() + 60
        while not _answers(server.pid):
            assert server.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
        server.terminate()
        assert server.wait(60) == 0


def _answers(pid: int) -> bool:
    """Ask the one port that the process listens on for its health."""
    found = _listening_port(pid)
    if found is None:
        return False
    code = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{found}/health', timeout=2)"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


def _listening_port(pid: int) -> int | None:
    inodes = set()
    for name in os.listdir(f"/proc/{pid}/fd"):
        try:
            inodes.add(os.readlink(f"/proc/{pid}/fd/{name}"))
        except OSError:
            continue
    with open("/proc/net/tcp") as table:
        for row in list(table)[1:]:
            cells = row.split()
            if cells[3] == "0A" and f"socket:[{cells[9]}]" in inodes:
                return int(cells[1].split(":")[1], 16)
    return None


def test_a_repeated_signal_is_one_wish_and_a_later_one_hurries() -> None:
    calls: list[str] = []
    signals = StopSignals()
    with pytest.raises(KeyboardInterrupt):
        signals._handle(signal.SIGINT, None)
    signals._handle(signal.SIGTERM, None)
    signals.begin_stop(lambda: calls.append("kill"))
    signals._handle(signal.SIGTERM, None)
    assert calls == []
    time.sleep(SAME_WISH_S)
    signals._handle(signal.SIGINT, None)
    assert calls == ["kill"]
