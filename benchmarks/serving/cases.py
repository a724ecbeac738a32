"""The generation workloads that every engine runs: deterministic prompts, greedy, no early end."""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """`batch` requests at once, each `prompt_tokens` in and `new_tokens` out."""

    name: str
    batch: int
    prompt_tokens: int
    new_tokens: int

    def prompts(self, vocab_size: int = 49152, run: int = 0) -> list[list[int]]:
        """Random token ids, different for each run so that no cache answers the second one."""
        rng = random.Random(f"{self.name}/{run}")
        return [
            [rng.randrange(100, vocab_size) for _ in range(self.prompt_tokens)]
            for _ in range(self.batch)
        ]


CASES = {
    case.name: case
    for case in (
        Case("batch 1", 1, 128, 128),
        Case("batch 8", 8, 128, 64),
        Case("batch 32", 32, 128, 64),
    )
}


def run_cases(
    names: list[str], generate: Callable[[list[list[int]], int], int], *, runs: int = 3
) -> None:
    """Time `generate(prompts, new_tokens) -> tokens made` and print one JSON line a case.

    One short warm-up, then `runs` timed runs; tokens/s count the whole wall time, prefill included.
    """
    generate(Case("warm-up", 1, 16, 4).prompts(), 4)
    for name in names:
        case = CASES[name]
        rates = []
        for run in range(runs):
            prompts = case.prompts(run=run)
            start = time.perf_counter()
            made = generate(prompts, case.new_tokens)
            seconds = time.perf_counter() - start
            expected = case.batch * case.new_tokens
            if made != expected:
                sys.exit(f"{name}: {made} tokens made, {expected} expected; the run is void")
            rates.append(made / seconds)
        print(json.dumps({"case": name, "tok_s": sorted(rates)[len(rates) // 2], "all": rates}))
        sys.stdout.flush()
