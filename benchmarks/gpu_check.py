"""Runs what needs a GPU, and writes what became of it.

    python -m benchmarks.gpu_check [--only GROUP] [PYTEST ...]

A group is some of the tests, or a workload of `benchmarks.device`; without one all of them run, the
tests first, as long as the time lasts. Rows have their commit, so that a figure is known to be of
code that has changed since. With two GPUs the times of collectives are written beside it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from benchmarks.results_file import Row, merge_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).parent.parent
COMMIT = os.environ.get("GPU_CHECK_COMMIT", "")
"""Of the code that runs, where it is no checkout; "": git says it."""
SMALL_BYTES = 256 * 1024
"""Messages up to this count as small."""
TESTS = ("tests/plugins_nvidia", "tests/core/executor")
TEST_GROUPS = {
    "tests": TESTS,
    "collectives": ("tests/plugins_nvidia/test_collectives.py",),
    "ranks": ("tests/plugins_nvidia/test_ranks.py",),
    "kernels": ("tests/plugins_nvidia/test_kernels.py", "tests/plugins_nvidia/test_graphs.py"),
}
WORK_GROUPS = {
    "decode": ("qwen3-8b", "--only", "decode"),
    "long": ("qwen3-8b", "--only", "long"),
    "agents": ("qwen3-8b", "--only", "agents", "--kv-gib", "100"),
    "prefill": ("qwen3-8b", "--only", "prefill"),
    "latent": ("deepseek-v2-lite",),
    "experts": ("qwen3-30b-a3b",),
    "hybrid": ("qwen3-next-12l",),
    "soak": (),
}
"""Groups of rows that a workload gives, the most telling ones first."""
TOTAL_S = 570
"""No group is begun once so much time has gone."""


def main() -> int:
    """Run one group or all; return 1 when something failed."""
    arguments, only = sys.argv[1:], ""
    if arguments[:1] == ["--only"]:
        only, arguments = arguments[1], arguments[2:]
        if only not in {*TEST_GROUPS, *WORK_GROUPS}:
            groups = ", ".join((*TEST_GROUPS, *WORK_GROUPS))
            print(f"--only {only}: no such group; groups: {groups}", file=sys.stderr)
            return 2
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
    module = "benchmarks.device.soak" if group == "soak" else "benchmarks.device"
    command = [sys.executable, "-P", "-m", module, *WORK_GROUPS[group], "--keep"]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH", ""))))
    done = subprocess.run(
        [*command, *arguments], cwd=ROOT, check=False, env={**os.environ, "PYTHONPATH": path}
    )
    return min(1, done.returncode)


def _test(group: str, arguments: Sequence[str]) -> int:
    """Run tests and write how they ended; return pytest's exit status."""
    import torch

    with tempfile.TemporaryDirectory() as folder:
        report, figures = Path(folder) / "report.xml", Path(folder) / "figures.json"
        command = [sys.executable, "-P", "-m", "pytest", "-m", "needs_nvidia"]
        command += ["-p", "no:cacheprovider", "-p", "no:benchmark", f"--junitxml={report}"]
        command += [*TEST_GROUPS[group], *arguments]
        started_s = time.time()
        environment = {**os.environ, "COLLECTIVES_JSON": str(figures)}
        status = subprocess.run(command, cwd=ROOT, check=False, env=environment).returncode
        counts = ElementTree.parse(report).getroot()[0].attrib
        rows = [*_test_rows(group, counts, time.time() - started_s), *_figure_rows(figures)]
    name = torch.cuda.get_device_name(0).lower().replace(" ", "-")
    versions = {"torch": torch.__version__, "python": sys.version.split()[0]}
    path = merge_rows(rows, versions, machine=f"{name}-x{torch.cuda.device_count()}")
    print(f"written to {path.relative_to(ROOT)}: {dict(counts)}")
    return status


def _test_rows(group: str, counts: Mapping[str, str], seconds: float) -> list[Row]:
    """Return how many tests ran, and how many of them did not pass."""
    failed = int(counts["failures"]) + int(counts["errors"])
    skipped = int(counts["skipped"])
    command = f'make gpu-check ARGS="--only {group}"'
    row = partial(Row, group="gpu-check", command=command, commit=COMMIT)
    return [
        row(name=f"{group}: tests that ran", value=int(counts["tests"]) - skipped, unit="tests",
            better="higher"),
        row(name=f"{group}: tests that failed", value=failed, unit="tests", better="lower",
            target="0"),
        row(name=f"{group}: time", value=round(seconds, 1), unit="s", better="lower",
            target="600"),
    ]  # fmt: skip


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
