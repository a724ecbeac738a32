"""Runs the kit's checks with pytest in a child process and collects one report.

A child, because a plugin may crash, and because what C0 measures must not be loaded before.
"""

from __future__ import annotations

import datetime
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenspeed
from tokenspeed_sdk import API_VERSION, ConfigError
from tokenspeed_sdk.conformance.report import CheckResult, Report
from tokenspeed_sdk.conformance.waivers import read_waivers, with_waivers

if TYPE_CHECKING:
    from collections.abc import Sequence

LEVELS = ("C0", "C1", "C2", "C3")
CHECKS = Path(__file__).parent / "checks"
TIMEOUT_S = 1800
NO_CHECKS = 5
"""What pytest ends with when no check is left to run."""


def run_conformance(
    plugin_id: str,
    *,
    level: str = "C3",
    waivers: Path | None = None,
    only: str = "",
    checkpoints: Sequence[Path] = (),
    quiet: bool = True,
) -> Report:
    """Check a plugin up to and including `level`.

    Args:
        plugin_id: of an installed plugin.
        level: one of LEVELS.
        waivers: file of accepted failures.
        only: run the checks whose id contains this text.
        checkpoints: folders of the plugin's models, which C2 runs.
        quiet: False: the child prints a line a check while it runs.
    Returns:
        The report; a child that died is a problem in it.
    Raises:
        ConfigError: an unknown level, no check that `only` names, bad waivers, or pytest is
            missing.
    """
    if level not in LEVELS:
        raise ConfigError(f"level is {level!r}; {', '.join(LEVELS)} are allowed")
    if importlib.util.find_spec("pytest") is None:
        raise ConfigError("the conformance kit needs pytest; run: python -m pip install pytest")
    today = datetime.datetime.now(tz=datetime.UTC).date()
    accepted = read_waivers(waivers, today) if waivers is not None else ()
    with tempfile.TemporaryDirectory(prefix="tokenspeed-conformance-") as folder:
        options = [] if quiet else ["--progress"]
        options += [f"--checkpoint={path.resolve()}" for path in checkpoints]
        problem = _run_child(plugin_id, level, only, options, Path(folder))
        report = _collect(plugin_id, level, Path(folder) / "results.jsonl", problem)
    return with_waivers(report, accepted, today.isoformat())


def _run_child(plugin_id: str, level: str, only: str, options: list[str], folder: Path) -> str:
    """Run pytest; return what is wrong with the run, or ""."""
    files = [str(next(CHECKS.glob(f"test_{name.lower()}_*.py"))) for name in _up_to(level)]
    command = [sys.executable, "-P", "-m", "pytest", *files]
    command += ["-c", str(CHECKS / "pytest.ini"), "--rootdir", str(CHECKS)]
    command += ["-p", "no:cacheprovider", "-p", "no:terminal"]
    command += ["-p", "tokenspeed_sdk.conformance.pytest_plugin"]
    command += ["--plugin-id", plugin_id, "--results", str(folder / "results.jsonl")]
    command += ["--only", only, *options]
    # Small tensors: threads would only get in each other's way.
    environ = {"OMP_NUM_THREADS": "1", **os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environ.pop("PYTEST_ADDOPTS", None)
    if paths := environ.get("PYTHONPATH"):  # the child runs in another folder
        environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, paths.split(os.pathsep)))
    try:
        done = subprocess.run(
            command,
            env=environ,
            cwd=folder,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the kit was stopped after {TIMEOUT_S} s"
    if done.returncode in {0, 1}:  # all passed, or some failed: both are in the results
        return ""
    if done.returncode == NO_CHECKS and only:
        raise ConfigError(
            f"--only is {only!r}, which is in the id of no check of {', '.join(_up_to(level))}; "
            "run it without --only to see the ids, or take a higher --level"
        )
    last = done.stderr.strip().splitlines()[-3:]
    return f"the kit's process ended with {done.returncode}: {' '.join(last) or 'no message'}"


def _up_to(level: str) -> tuple[str, ...]:
    return LEVELS[: LEVELS.index(level) + 1]


def _collect(plugin_id: str, level: str, results: Path, problem: str) -> Report:
    plugin: dict[str, Any] = {"id": plugin_id}
    problems = [problem] if problem else []
    checks = []
    for line in results.read_text(encoding="utf-8").splitlines() if results.exists() else ():
        entry = json.loads(line)
        if "plugin" in entry:
            plugin |= entry["plugin"]
        elif "problem" in entry:
            problems.append(entry["problem"])
        else:
            checks.append(CheckResult(**entry))
    engine = {"version": tokenspeed.__version__, "api": API_VERSION}
    return Report(plugin, engine, level, tuple(checks), tuple(problems))
