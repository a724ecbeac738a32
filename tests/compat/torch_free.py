"""For check_python.sh: which packages to install without torch, and what imports without it."""

from __future__ import annotations

import importlib
import importlib.util
import pkgutil
import re
import sys
from pathlib import Path

PACKAGES = ("tokenspeed", "tokenspeed_sdk", "tokenspeed_nvidia", "tokenspeed_amd")
WITH_TORCH = ("tokenspeed.executor", "tokenspeed.sampling.table", "tokenspeed_sdk.testkit.scripted")
RUN_ON_IMPORT = ("tokenspeed.__main__", "tokenspeed.plugins.probe_child")
NEEDS_TORCH = {"accelerate"}


def requirements(file: Path) -> list[str]:
    """Return the lines of a requirements file that bring no torch."""
    lines = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
    named = [line for line in lines if line and not line.startswith("#")]
    return [line for line in named if re.split(r"[<>=~!\[; ]", line)[0] not in NEEDS_TORCH]


def import_all() -> int:
    """Import every module of ours but those that are made of torch; return how many."""
    assert importlib.util.find_spec("torch") is None, "this environment has torch; take another"
    count = 0
    for package in PACKAGES:
        path = importlib.import_module(package).__path__
        for module in pkgutil.walk_packages(path, f"{package}.", onerror=lambda name: None):
            if module.name.startswith(WITH_TORCH) or module.name in RUN_ON_IMPORT:
                continue
            importlib.import_module(module.name)
            count += 1
    return count


if __name__ == "__main__":
    if sys.argv[1] == "requirements":
        print("\n".join(line for name in sys.argv[2:] for line in requirements(Path(name))))
    else:
        print(f"ok   {import_all()} modules import without torch")
