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
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TESTS = ("tests/plugins_nvidia", "tests/core/executor")
ONLY = {"collectives": ("tests/plugins_nvidia/test_collectives.py",)}
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
    device = torch.cuda.get_device_name(0).lower().replace(" ", "-")
    figures = RESULTS / f"collectives-{device}.json"
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
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
    row = {
        "device": torch.cuda.get_device_name(0),
        "torch": torch.__version__,
        "python": sys.version.split()[0],
        "commit": os.environ.get("GPU_CHECK_COMMIT") or _commit(),
        "seconds": round(time.time() - started_s, 1),
        **{name: int(counts[name]) for name in ("tests", "failures", "errors", "skipped")},
    }
    path = RESULTS / f"gpu-check-{only + '-' if only else ''}{device}.json"
    path.write_text(json.dumps(row, indent=2) + "\n", encoding="utf-8")
    print(f"written to {path.relative_to(ROOT)}: {row}")
    return status


def _commit() -> str:
    command = ["git", "rev-parse", "--short", "HEAD"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"


if __name__ == "__main__":
    sys.exit(main())
