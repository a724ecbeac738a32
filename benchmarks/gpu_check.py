"""Runs what needs a GPU, and writes what became of it.

    python -m benchmarks.gpu_check [--only GROUP] [PYTEST ...]

A group is some of the tests, or a workload of `benchmarks.device`; without one all of them run, the
tests first, as long as the time lasts. The group `sanitizer` runs only where it is asked for. Rows
have their commit, so that a figure is known to be of code that has changed since. With two GPUs the
times of collectives are written beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.gpu_tests import COMMIT, ROOT, rows_of, run_tests, workers
from benchmarks.results_file import Row, merge_rows
from benchmarks.sanitizer import sanitize

if TYPE_CHECKING:
    from collections.abc import Sequence

SMALL_BYTES = 256 * 1024
"""Messages up to this count as small."""
TESTS = ("tests/plugins_nvidia", "tests/core/executor")
TEST_GROUPS = {
    "tests": TESTS,
    "collectives": ("tests/plugins_nvidia/test_collectives.py",),
    "ranks": ("tests/plugins_nvidia/test_ranks.py",),
    "kernels": ("tests/plugins_nvidia/test_kernels.py", "tests/plugins_nvidia/test_graphs.py"),
}
SIDE_BY_SIDE = ("tests", "kernels")
"""Groups of many tests that compile: they run in several processes, where pytest can."""
SANITIZER = "sanitizer"
"""The group that runs kernels under a tool that watches what they access."""
WORKLOADS = "benchmarks.device"
WORK_GROUPS = {
    "decode": (WORKLOADS, "qwen3-8b", "--only", "decode"),
    "long": (WORKLOADS, "qwen3-8b", "--only", "long"),
    "agents": (WORKLOADS, "qwen3-8b", "--only", "agents", "--kv-gib", "100"),
    "prefill": (WORKLOADS, "qwen3-8b", "--only", "prefill"),
    "steps": (WORKLOADS, "qwen3-8b", "--only", "steps"),
    "latent": (WORKLOADS, "deepseek-v2-lite"),
    "experts": (WORKLOADS, "qwen3-30b-a3b"),
    "hybrid": (WORKLOADS, "qwen3-next-12l"),
    "soak": ("benchmarks.device.soak",),
}
"""Group -> module and arguments of what gives its rows, the most telling ones first."""
TOTAL_S = 570
"""No group is begun once so much time has gone."""


def main() -> int:
    """Run one group or all; return 1 when something failed."""
    arguments, only = sys.argv[1:], ""
    if arguments[:1] == ["--only"]:
        only, arguments = arguments[1], arguments[2:]
        if only not in (known := (*TEST_GROUPS, SANITIZER, *WORK_GROUPS)):
            groups = ", ".join(known)
            print(f"--only {only}: no such group; groups: {groups}", file=sys.stderr)
            return 2
    if only == SANITIZER:
        return _sanitize()
    if only in WORK_GROUPS:
        return _work(only, arguments)
    started_s = time.monotonic()
    status = _test(only or "tests", arguments)
    if only:
        return status
    for group in WORK_GROUPS:
        if time.monotonic() - started_s > TOTAL_S:
            print(f"no time left for {group}: make gpu-check ARGS='--only {group}'")
        else:
            status = max(status, _work(group, []))
    return status


def _work(group: str, arguments: Sequence[str]) -> int:
    """Measure a workload in a process of its own, which has the GPU's memory; its rows are kept."""
    command = [sys.executable, "-P", "-m", *WORK_GROUPS[group], "--keep"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    return min(1, done.returncode)


def _test(group: str, arguments: Sequence[str]) -> int:
    """Run tests and write how they ended; return pytest's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        figures = Path(folder) / "figures.json"
        side_by_side = workers(arguments) if group in SIDE_BY_SIDE else []
        ended = run_tests(
            TEST_GROUPS[group],
            [*side_by_side, *arguments],
            environment={"COLLECTIVES_JSON": str(figures)},
        )
        _write([*rows_of(group, ended), *_figure_rows(figures)])
    return ended.status


def _sanitize() -> int:
    """Look for accesses outside of memory, and write what was found."""
    status, rows = sanitize()
    if rows:
        _write(rows)
    return status


def _write(rows: list[Row]) -> None:
    """Merge rows into the file of this machine's GPUs."""
    import torch

    name = torch.cuda.get_device_name(0).lower().replace(" ", "-")
    versions = {"torch": torch.__version__, "python": sys.version.split()[0]}
    path = merge_rows(rows, versions, machine=f"{name}-x{torch.cuda.device_count()}")
    print(f"written to {path.relative_to(ROOT)}:")
    for row in rows:
        print(f"  {row.name}: {row.value:g} {row.unit}")


def _figure_rows(figures: Path) -> list[Row]:
    """Return the times of all-reduces: the better of ours beside the best that there is."""
    if not figures.exists():
        return []
    rows = []
    for found in json.loads(figures.read_text())["all_reduce_bfloat16"]:
        times: dict[str, float] = found["graph_us"] or found["eager_us"]
        own = min(times["nccl"], times["peer"])
        best = min(times, key=lambda name: times[name])
        rows.append(
            Row(
                group="collectives",
                name=f"all-reduce of {found['bytes']:,} bytes of bfloat16 on two GPUs, replayed",
                value=round(own, 2),
                unit="us",
                better="lower",
                command='make gpu-check ARGS="--only collectives"',
                peer=f"best of all: {best}",
                peer_value=round(times[best], 2),
                ratio=round(times[best] / own, 3),
                target="1.3x of the best" if found["bytes"] <= SMALL_BYTES else "",
                commit=COMMIT,
            )
        )
    return rows


if __name__ == "__main__":
    sys.exit(main())
