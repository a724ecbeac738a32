"""Runs workloads on one model and writes the figures; see the package."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.device.driver import Driver, write_model
from benchmarks.device.figures import FIGURES, OF_MODEL, PEER, PEER_DATE, Figure
from benchmarks.device.workloads import WORKLOADS, Lengths
from benchmarks.results_file import Row, merge_rows

if TYPE_CHECKING:
    from collections.abc import Mapping

KV_GIB = 60.0
COMMIT = os.environ.get("GPU_CHECK_COMMIT", "")


def main() -> int:
    """Measure; return 1 when a target was not reached."""
    given = _arguments()
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = write_model(given.model, Path(folder) / given.model, given.scale)
        settings = {"plugins": given.plugins, "kv_gib": given.kv_gib, "dtype": given.dtype}
        settings |= {"max_running": 128} | dict(item.split("=", 1) for item in given.setting)
        driver = Driver(path, **settings)
        print(f"{given.model}: started in {driver.started_in_s:.1f} s", flush=True)
        for name in given.only.split(",") if given.only else OF_MODEL[given.model]:
            found = WORKLOADS[name](driver, Lengths(given.scale))
            for what, value in found.items():
                known = FIGURES[given.model].get(what)
                print(f"  {what}: {value:,.4g} {_beside(known, value)}", flush=True)
            figures |= found
        driver.close()
    if not given.keep:
        return 0
    rows = _rows(given.model, figures, " ".join(sys.argv[1:]))
    print(f"written to {merge_rows(rows, versions(), machine=machine_name())}")
    return 0


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.device")
    parser.add_argument("model", choices=FIGURES)
    parser.add_argument("--only", default="", help=f"some of {', '.join(WORKLOADS)}")
    parser.add_argument("--plugins", default="sdk,nvidia,reference")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--kv-gib", type=float, default=KV_GIB)
    parser.add_argument("--setting", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--scale", type=int, default=1, help="divides sizes, for small machines")
    parser.add_argument("--keep", action="store_true", help="write the figures to the results")
    return parser.parse_args()


def _beside(known: Figure | None, value: float) -> str:
    if known is None:
        return ""
    parts = [known.unit]
    ratio = known.ratio(value)
    if ratio is not None:
        parts.append(f"({ratio:.2f}x {PEER})")
    if known.target is not None:
        parts.append("reached" if known.is_reached(value) else f"target {known.target:g}")
    return " ".join(parts)


def _rows(model: str, figures: Mapping[str, float], arguments: str) -> list[Row]:
    rows = []
    row = partial(Row, group=model, command=f"python -m benchmarks.device {arguments}")
    for name, value in figures.items():
        known = FIGURES[model].get(name)
        if known is None:
            continue
        ratio = known.ratio(value)
        rows.append(
            row(
                name=name,
                value=round(value, 4),
                unit=known.unit,
                better=known.better,
                peer=PEER if known.peer is not None else "",
                peer_value=known.peer,
                peer_date=PEER_DATE if known.peer is not None else "",
                ratio=None if ratio is None else round(ratio, 3),
                target="" if known.target is None else f"{known.target:g}",
                commit=COMMIT,
            )
        )
    return rows


def versions() -> dict[str, str]:
    """Return those of what measures."""
    import torch

    return {"torch": torch.__version__, "python": platform.python_version()}


def machine_name() -> str | None:
    """Return the name that the GPU's results have; None: there is no GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    name = torch.cuda.get_device_name(0).lower().replace(" ", "-")
    return f"{name}-x{torch.cuda.device_count()}"


if __name__ == "__main__":
    sys.exit(main())
