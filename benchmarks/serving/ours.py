"""TokenSpeed itself: offline generation cases, and what the server's users feel.

Usage: ours.py generate MODEL dense|packed CASE... | ours.py memory MODEL
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

DENSE_BYTES = 4 * 134_515_008  # SmolLM2-135M in float32, head and embedding shared


def generate_cases(model: str, weights: str, names: list[str]) -> None:
    """Run the shared cases through the offline engine, prefix cache on as it ships."""
    from cases import run_cases

    from tokenspeed import LLM, SamplingParams

    with LLM(model, weights=weights, kv_gib=1.0, max_running=32) as llm:

        def generate(prompts: list[list[int]], new_tokens: int) -> int:
            params = SamplingParams(temperature=0.0, max_tokens=new_tokens, ignore_eos=True)
            return sum(len(output.token_ids) for output in llm.generate(prompts, params))

        run_cases(names, generate)


def peak_memory(model: str) -> None:
    """Write every block of the arena and print the process's peak resident set beside what explains
    it: the system commits pages on first use, so an arena that was never full would look small."""
    import resource

    import torch

    torch.ones(8, 8) @ torch.ones(8, 8)
    baseline = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    from tokenspeed import LLM, SamplingParams

    kv_gib = 0.25
    with LLM(model, kv_gib=kv_gib, max_running=32) as llm:
        params = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
        llm.generate([[7 + index] * 500 for index in range(16)], params)
        stats = llm.stats()
        assert stats.blocks_used + stats.blocks_cached >= 0.9 * stats.blocks_total, stats
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        json.dumps(
            {
                "peak_bytes": peak,
                "torch_baseline_bytes": baseline,
                "weight_bytes": DENSE_BYTES,
                "kv_bytes": int(kv_gib * 2**30),
            }
        )
    )


def main() -> None:
    """Run one mode; each runs in a process of its own."""
    mode, model, *rest = sys.argv[1:]
    if mode == "generate":
        generate_cases(model, rest[0], rest[1:])
    else:
        peak_memory(model)


if __name__ == "__main__":
    main()
