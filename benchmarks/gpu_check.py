"""Runs what needs a GPU, and writes what became of it.

    python -m benchmarks.gpu_check [--only collectives] [PYTEST ...]

The row has its commit, so that a figure is known to be of code that has changed since. With two
GPUs the times of collectives are written beside it.
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
    from collections.abc import Mapping

ROOT = Path(__file__).parent.parent
COMMIT = os.environ.get("GPU_CHECK_COMMIT", "")
"""Of the code that runs, where it is no checkout; "": git says it."""
SMALL_BYTES = 256 * 1024
"""Messages up to this count as small."""
TESTS = ("tests/plugins_nvidia", "tests/core/executor")
ONLY = {
    "collectives": ("tests/plugins_nvidia/test_collectives.py",),
    "ranks": ("tests/plugins_nvidia/test_ranks.py",),
}
"""Groups that can be run alone."""


def main() -> int:
    """Run the tests; return pytest's exit status."""
    import torch

    arguments, only = sys.argv[1:], ""
    if arguments[:1] == ["--only"]:
        only, arguments = arguments[1], arguments[2:]
        if only not in ONLY:
            print(f"--only {only}: no such group; groups: {', '.join(ONLY)}", file=sys.stderr)
            return 2
    with tempfile.TemporaryDirectory() as folder:
        report, figures = Path(folder) / "report.xml", Path(folder) / "figures.json"
        command = [
            sys.executable,
            "-P",
            "-m",
            "pytest",
            "-m",
            "needs_nvidia",
            "-p",
            "no:cacheprovider",
        ]
        command += [f"--junitxml={report}", *ONLY.get(only, TESTS), *arguments]
        started_s = time.time()
        environment = {**os.environ, "COLLECTIVES_JSON": str(figures)}
        status = subprocess.run(command, cwd=ROOT, check=False, env=environment).returncode
        counts = ElementTree.parse(report).getroot()[0].attrib
        rows = [*_test_rows(only, counts, time.time() - started_s), *_figure_rows(figures)]
    name = torch.cuda.get_device_name(0).lower().replace(" ", "-")
    versions = {"torch": torch.__version__, "python": sys.version.split()[0]}
    path = merge_rows(rows, versions, machine=f"{name}-x{torch.cuda.device_count()}")
    print(f"written to {path.relative_to(ROOT)}: {dict(counts)}")
    return status


def _test_rows(only: str, counts: Mapping[str, str], seconds: float) -> list[Row]:
    """Return how many tests ran, and how many of them did not pass."""
    group = only or "all"
    failed = int(counts["failures"]) + int(counts["errors"])
    skipped = int(counts["skipped"])
    row = partial(Row, group="gpu-check", command="make gpu-check", commit=COMMIT)
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
