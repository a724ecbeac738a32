"""A server on two ranks: same answers, and no process outlives it however one of them ends."""

from __future__ import annotations

import os
import signal
import time
from typing import TYPE_CHECKING

import pytest
from tests.support.processes import command_of, descendants, wait_gone, workers_of
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from pathlib import Path

BODY = {"model": "model", "prompt": "abc", "max_tokens": 20, "temperature": 0}
TWO = ("--tp", "2", "--rank-timeout-s", "4")


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_scripted_model(tmp_path / "model", step_ms=5, max_position_embeddings=8192)


def answer_of(server: ServerProcess) -> str:
    answer = server.call("/v1/completions", BODY)
    assert answer.status == 200, answer.body
    text: str = answer.json()["choices"][0]["text"]
    return text


def child(server: ServerProcess, words: str) -> int:
    """Return the one process under the server whose command line has these words."""
    (found,) = [pid for pid in descendants(server.process.pid) if words in command_of(pid)]
    return found


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_two_ranks_answer_and_a_signal_ends_all_in_peace(
    model: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with ServerProcess(model, tmp_path, *TWO, new_session=True) as server:
        pids = descendants(server.process.pid)
        assert len(workers_of(server.process.pid)) == 1
        assert len(answer_of(server)) == 20
        os.killpg(server.process.pid, number)
        assert server.process.wait(60) == 0
        assert wait_gone(pids) == []
    log = server.log.read_text()
    assert "mesh       tp=2 dp=1 ep=1" in log
    assert "is ready on cpu" in log
    assert "ERROR" not in log


@pytest.mark.slow
def test_the_server_goes_on_over_kill_9_of_any_process_and_ends_with_its_launcher(
    model: Path, tmp_path: Path
) -> None:
    with ServerProcess(model, tmp_path, *TWO) as server:
        expected = answer_of(server)
        for words in ("server.api_process", "engine.ranks.process", "engine.process"):
            victim = child(server, words)
            gone = [victim]
            if words != "server.api_process":  # a replica goes as a whole
                gone += [child(server, "engine.process"), *workers_of(server.process.pid)]
            os.kill(victim, signal.SIGKILL)
            assert answer_when_back(server) == expected
            assert wait_gone(gone) == [], words
        pids = descendants(server.process.pid)
        assert len(workers_of(server.process.pid)) == 1
        server.process.kill()
        assert wait_gone(pids) == []


@pytest.mark.slow
def test_stopped_processes_die_with_the_launcher_too(model: Path, tmp_path: Path) -> None:
    with ServerProcess(model, tmp_path, "--tp", "2", "--rank-timeout-s", "60") as server:
        pids = descendants(server.process.pid)
        (worker,) = workers_of(server.process.pid)
        os.kill(worker, signal.SIGSTOP)
        os.kill(child(server, "engine.process"), signal.SIGSTOP)
        server.process.kill()
        assert wait_gone(pids) == []


def answer_when_back(server: ServerProcess) -> str:
    """Return the answer once the server gives one again."""
    deadline_s = time.monotonic() + 60
    while True:
        try:
            return answer_of(server)
        except (OSError, AssertionError):
            assert time.monotonic() < deadline_s
            time.sleep(0.1)
