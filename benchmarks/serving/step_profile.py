"""Where the time of a decode step goes, in CPU microseconds of the engine's thread.

Runs the offline engine on one torch thread, times what the layers bound (each timer costs about one
microsecond a call), and prints the median decode step of each batch size, parts in columns.
Usage: step_profile.py [--model MODEL] [--weights dense,packed] [--batches 1,8,32] [--context N]
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from tokenspeed import LLM, SamplingParams

PARTS = ("linears", "norms", "rotary", "attention", "kv write", "gate", "sampling", "batch")
"""Columns; what remains of a step is Python around them."""

BOUND = {
    ("Linear", "_multiply"): "linears",
    ("RMSNorm", "_normalize"): "norms",
    ("RMSNorm", "_add_normalize"): "norms",
    ("RotaryEmbedding", "_rotate"): "rotary",
    ("RotaryEmbedding", "_angles"): "rotary",
    ("PagedAttention", "_write"): "kv write",
    ("PagedAttention", "_attend"): "attention",
    ("GatedMLP", "_activate"): "gate",
    ("Executor", "_sample"): "sampling",
    ("StepBatcher", "build"): "batch",
}
"""(class, attribute that holds a callable) -> part."""


class Stopwatch:
    """Exclusive CPU time of each part, step by step; only decode steps of `batch` rows count."""

    def __init__(self) -> None:
        self.batch = 0
        self.steps: list[dict[str, float]] = []
        self._spent: dict[str, float] = defaultdict(float)
        self._inner = [0.0]

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap `function`: time in parts that it calls counts for them alone."""

        def wrapper(*args: Any, **options: Any) -> Any:
            start = time.thread_time()
            self._inner.append(0.0)
            result = function(*args, **options)
            spent = time.thread_time() - start
            self._spent[part] += spent - self._inner.pop()
            self._inner[-1] += spent
            return result

        return wrapper

    def watch(self, executor: Any) -> None:
        """Time every bound part below the executor, and its steps."""
        for owner in list(_objects(executor, set())):
            for (kind, name), part in BOUND.items():
                if type(owner).__name__ == kind and hasattr(owner, name):
                    setattr(owner, name, self.timed(part, getattr(owner, name)))
        launch = self.timed("step", executor.launch)

        def step(plan: Any) -> None:
            self._spent.clear()
            launch(plan)
            if plan.num_decode_rows == plan.num_rows == self.batch:
                self.steps.append(dict(self._spent))

        executor.launch = step


def _objects(owner: Any, seen: set[int]) -> Iterator[Any]:
    """Yield the executor, its batcher, and the model's layers, each once."""
    is_ours = type(owner).__module__.startswith(
        ("tokenspeed.executor", "tokenspeed.models", "tokenspeed.layers")
    )
    if isinstance(owner, list):
        for item in owner:
            yield from _objects(item, seen)
    elif is_ours and hasattr(owner, "__dict__") and id(owner) not in seen:
        seen.add(id(owner))
        yield owner
        for value in list(vars(owner).values()):
            yield from _objects(value, seen)


def profile(llm: LLM, watch: Stopwatch, batch: int, context: int) -> list[float]:
    """Decode 24 tokens in `batch` requests and return microseconds: parts, other, whole step.

    Prompts differ in length: half the context up to the whole one.
    """
    watch.batch, watch.steps = batch, []
    params = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
    lengths = [context - row * (context // 2) // max(batch, 2) for row in range(batch)]
    llm.generate([[(7 * row + i) % 9000 + 100 for i in range(n)] for row, n in enumerate(lengths)],
                 params)  # fmt: skip
    parts = [median(step.get(part, 0.0) for step in watch.steps) * 1e6 for part in PARTS]
    other = median(step["step"] for step in watch.steps) * 1e6
    return [*parts, other, median(sum(step.values()) for step in watch.steps) * 1e6]


def main() -> None:
    """Print one table a weight format."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="")
    parser.add_argument("--weights", default="dense,packed")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--context", type=int, default=200)
    options = parser.parse_args()
    for weights in options.weights.split(","):
        print(f"{weights}, up to {options.context} tokens of context, CPU us a step")
        print("".join(f"{name:>10}" for name in ("rows", *PARTS, "other", "step", "no linears")))
        with LLM(options.model, weights=weights, threads=1, kv_gib=1.0, max_running=32) as llm:
            watch = Stopwatch()
            watch.watch(llm.engine.executor)
            for batch in map(int, options.batches.split(",")):
                times = profile(llm, watch, batch, options.context)
                row = [batch, *times, times[-1] - times[0]]
                print("".join(f"{value:10.0f}" for value in row), flush=True)


if __name__ == "__main__":
    main()
