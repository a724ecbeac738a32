"""Ranks that torchrun and Ray start: they answer alike, come back, and end with the server."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import signal
import socket
import time
import urllib.request
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.plugin_wheels import WheelFolder
from tests.support.processes import command_of, descendants, wait_gone
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess, run_cli

if TYPE_CHECKING:
    from pathlib import Path

BODY = {"model": "model", "prompt": "abc", "max_tokens": 20, "temperature": 0}
TWO = ("--tp", "2", "--rank-timeout-s", "20")
TIERS = ("--host-kv-gib", "0.01", "--kv-write", "on_commit", "--block-tokens", "16")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
HAS_RAY = importlib.util.find_spec("ray") is not None


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_scripted_model(tmp_path / "model")


def answer_of(server: ServerProcess) -> str:
    """Return the answer, once the server gives one (again)."""
    deadline_s = time.monotonic() + 90
    while True:
        try:
            answer = server.call("/v1/completions", BODY)
            text: str = answer.json()["choices"][0]["text"]
            return text
        except (OSError, LookupError):
            assert time.monotonic() < deadline_s
            time.sleep(0.2)


def worker_pid(server: ServerProcess, number: int) -> int:
    """Return the process id of the so-many-th worker that the log tells of."""
    deadline_s = time.monotonic() + 90
    while True:
        found = re.findall(r"rank 1: worker is pid (\d+)", server.log.read_text())
        if len(found) > number:
            return int(found[number])
        assert time.monotonic() < deadline_s
        time.sleep(0.1)


def wait_written(server: ServerProcess) -> None:
    """Wait until a block is in the host memory of every rank, and no copy is under way."""
    deadline_s = time.monotonic() + 60
    while True:
        state = server.call("/v1/engine/state").json()
        (host,) = state["tiers"]
        if host["free"] < host["total"] and not any(kind["count"] for kind in state["transfers"]):
            return
        assert time.monotonic() < deadline_s, (host, state["transfers"])
        time.sleep(0.1)


ELSEWHERE = """
import os, socket
if os.environ.get("RANK") == "1":
    socket.gethostname = lambda: "elsewhere"
"""
"""What makes rank 1 a rank of another host: nothing else tells."""


@pytest.mark.slow
@pytest.mark.parametrize("num_hosts", [1, 2])
def test_torchrun_starts_ranks_that_come_back_and_end_in_order(
    model: Path, tmp_path: Path, num_hosts: int
) -> None:
    wheels = WheelFolder(tmp_path / "startup")
    wheels.at_startup(ELSEWHERE if num_hosts == 2 else "")
    environ = {"PYTHONSAFEPATH": "1", "PYTHONPATH": wheels.environ()["PYTHONPATH"]}
    with ServerProcess(
        model, tmp_path, *TWO, *TIERS, "--launcher", "torchrun", through=TORCHRUN, environ=environ
    ) as server:
        expected = answer_of(server)
        assert len(expected) == 20
        wait_written(server)
        pids = descendants(server.process.pid)
        first = worker_pid(server, 0)
        os.kill(first, signal.SIGKILL)
        second = worker_pid(server, 1)
        assert answer_of(server) == expected
        pids = [*pids, *descendants(server.process.pid)]
        server.stop()
        assert wait_gone([*pids, second]) == []
    log = server.log.read_text()
    assert f"rank 1 (pid {first} on" in log
    assert ("on elsewhere)" in log) is (num_hosts == 2)
    assert log.count(" ERROR ") == 2, "the rank's death, and the engine's"


def actors_of(server: ServerProcess) -> dict[str, dict[str, Any]]:
    """Return what Ray's dashboard shows of the ranks, by name."""
    found = re.search(r"dashboard shows the ranks as actors: (http://\S+)", server.log.read_text())
    assert found is not None, "the log says where the dashboard is"
    with urllib.request.urlopen(f"{found[1]}/api/v0/actors?detail=true", timeout=20) as answer:
        rows = json.load(answer)["data"]["result"]["result"]
    return {row["name"]: row for row in rows}


def restarted(server: ServerProcess, name: str) -> dict[str, Any]:
    """Return what the dashboard shows of a rank, once it shows a restart."""
    deadline_s = time.monotonic() + 60
    while (row := actors_of(server)[name])["num_restarts"] == 0 or row["state"] != "ALIVE":
        assert time.monotonic() < deadline_s, row
        time.sleep(0.5)
    return row


@pytest.mark.slow
@pytest.mark.skipif(not HAS_RAY, reason="ray is not installed: make ray")
def test_ray_starts_named_actors_and_replaces_one_that_is_killed(
    model: Path, tmp_path: Path
) -> None:
    environ = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}
    with ServerProcess(
        model, tmp_path, *TWO, "--launcher", "ray", environ=environ, new_session=True
    ) as server:
        expected = answer_of(server)
        assert len(expected) == 20
        first = worker_pid(server, 0)
        actor = int(re.findall(r"--parent (\d+)", command_of(first))[0])
        assert "ray::RankActor" in command_of(actor)
        shown = actors_of(server)
        (name,) = [one for one, row in shown.items() if row["pid"] == actor]
        assert re.fullmatch(r"tokenspeed-\d+-rank-1", name)
        assert sorted(one[-1] for one in shown) == ["0", "1"]
        assert {row["state"] for row in shown.values()} == {"ALIVE"}
        assert shown[name]["repr_name"] == f"tokenspeed rank 1 of 2 on {socket.gethostname()}"
        os.kill(actor, signal.SIGKILL)
        second = worker_pid(server, 1)
        assert wait_gone([first]) == []
        assert answer_of(server) == expected
        assert restarted(server, name)["pid"] != actor
        pids = [*descendants(server.process.pid), second]
        server.stop()
        assert wait_gone(pids) == []
    assert f"rank 1 (pid {first} on" in server.log.read_text()


def test_torchrun_that_has_not_started_this_process_is_named(model: Path) -> None:
    ran = run_cli("serve", str(model), "--plugins", "sdk", *TWO, "--launcher", "torchrun")
    assert ran.returncode == 2
    assert "launcher is torchrun, and RANK, WORLD_SIZE, MASTER_ADDR" in ran.stderr


@pytest.mark.skipif(HAS_RAY, reason="ray is installed")
def test_ray_that_is_not_installed_is_named(model: Path) -> None:
    ran = run_cli("serve", str(model), "--plugins", "sdk", *TWO, "--launcher", "ray")
    assert ran.returncode == 2
    assert "`pip install ray`" in ran.stderr
