"""Check 12: every process compares the plan; one with another plugin version aborts the start."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.plugin_wheels import WheelFolder
from tests.support.scripted import write_scripted_model

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

ROLES = '["api", "engine", "worker"]'
OTHER_PATH = """
import sys
if {mark!r} in " ".join(sys.orig_argv):
    sys.path[sys.path.index({site!r})] = {other!r}
"""
SPARE_WORKER = """
import json, subprocess, sys
from tokenspeed.plugins import plan_plugins

plan = plan_plugins(("acme",))
worker = [sys.executable, "-m", "tokenspeed.plugins.role_process", "worker"]
text = json.dumps(plan.to_json()) + "\\n"
answer = json.loads(subprocess.run(worker, input=text, stdout=subprocess.PIPE, text=True).stdout)
print(json.dumps({"launcher": plan.digest, **answer}))
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_scripted_model(tmp_path / "scripted", script="Hello")


def split(wheels: WheelFolder, tmp_path: Path, mark: str) -> None:
    """Install acme 1.2.3, and let processes with this mark on their command line see 2.0.0."""
    package = wheels.install("acme", roles=ROLES)
    other = WheelFolder(tmp_path / "other")
    other.install("acme", package=package, version="2.0.0", roles=ROLES)
    paths = {"site": str(wheels.folder), "other": str(other.folder)}
    wheels.at_startup(OTHER_PATH.format(mark=mark, **paths))


def serve(wheels: WheelFolder, model: Path) -> subprocess.CompletedProcess[str]:
    flags = ("--port", "0", "--plugins", "sdk,acme", "--block-tokens", "16", "--kv-gib", "0.001")
    return wheels.tokenspeed("serve", str(model), *flags, timeout_s=120)


def ask_worker(wheels: WheelFolder) -> dict[str, Any]:
    result = wheels.python(SPARE_WORKER)
    assert result.returncode == 0, result.stderr
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.mark.parametrize(
    ("mark", "named", "seen", "planned"),
    [
        ("tokenspeed.engine.process", "the engine process", "2.0.0", "1.2.3"),
        ("tokenspeed.server.api_process", "the api process", "2.0.0", "1.2.3"),
        ("tokenspeed serve", r"the (api|engine) process", "1.2.3", "2.0.0"),
    ],
    ids=["engine", "api", "launcher"],
)
def test_12_one_plan_for_all_processes(
    wheels: WheelFolder, model: Path, tmp_path: Path, mark: str, named: str, seen: str, planned: str
) -> None:
    split(wheels, tmp_path, mark)
    result = serve(wheels, model)
    assert result.returncode == 4, result.stderr
    assert re.search(
        rf"{named} \(pid \d+\) sees plugin acme as fake-acme {seen} .*, "
        rf"the launcher as fake-acme {planned} ",
        result.stderr,
    ), result.stderr
    assert len(set(re.findall(r"plan digest ([0-9a-f]{16})\)", result.stderr))) == 2
    assert "[plan-differs]" in result.stderr
    assert "ready" not in result.stderr


def test_12_a_spare_worker_reports_the_plans_digest(wheels: WheelFolder) -> None:
    wheels.install("acme", roles=ROLES)
    answer = ask_worker(wheels)
    assert (answer["digest"], answer["exit_code"]) == (answer["launcher"], 0)
    assert answer["registered"]["offers"]["model"] != []


def test_12_a_spare_worker_with_another_version_names_itself(
    wheels: WheelFolder, tmp_path: Path
) -> None:
    split(wheels, tmp_path, "-m tokenspeed.plugins.role_process")
    answer = ask_worker(wheels)
    assert (answer["exit_code"], answer["id"]) == (4, "plan-differs")
    assert answer["digest"] != answer["launcher"]
    for words in ("the worker process", "plugin acme", answer["digest"], answer["launcher"]):
        assert words in answer["problem"]
