"""How long a start spends on compiling a model for its ranks: python -m benchmarks.placement

Traced and compiled from config.json alone, as every rank does at its start. CPU time, the least of
five: the search is one thread's and other work on the machine does not count.
"""

from __future__ import annotations

import platform
import time

from benchmarks.results_file import Row, merge_rows
from tests.support.traced_models import PUBLISHED, model_class

from tokenspeed.placement.compiled import compile_model
from tokenspeed.placement.mesh import Degrees, build_mesh

MESHES = {
    "tp 8": Degrees(tp=8),
    "tp 8, ep 4": Degrees(tp=8, ep=4),
    "tp 4, dp 2, ep 8": Degrees(tp=4, dp=2, ep=8),
    "tp 4, dp 2, ep 8, pp 2": Degrees(tp=4, dp=2, ep=8, pp=2),
}
MODELS = ("deepseek-v3", "llama-3.3-70b", "qwen3-next-80b")
REPEATS = 5


def main() -> None:
    """Time every pair and write the rows."""
    rows = [_row(name, mesh) for name in MODELS for mesh in MESHES]
    path = merge_rows(rows, {"python": platform.python_version()})
    print(f"written to {path}")


def _row(name: str, mesh: str) -> Row:
    config = PUBLISHED[name]
    times_s = []
    for _ in range(REPEATS):
        started_s = time.process_time()
        compile_model(model_class(config), config, build_mesh(MESHES[mesh]), dtype="bfloat16")
        times_s.append(time.process_time() - started_s)
    layers = config["num_hidden_layers"]
    print(f"{name}, {mesh}: {min(times_s) * 1e3:.0f} ms")
    return Row(
        group="placement",
        name=f"compile {name} ({layers} layers) for {mesh}",
        value=round(min(times_s) * 1e3, 1),
        unit="ms",
        better="lower",
        command="python -m benchmarks.placement",
        target="1000" if name == "deepseek-v3" else "",
    )


if __name__ == "__main__":
    main()
