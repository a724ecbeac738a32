"""A grammar on against off: 32 answers at once from one engine, that take turns.

Usage: python -m benchmarks.serving.grammar [MODEL] [--rounds 5] [--dry]
With the grammar every answer is a JSON list of objects, long enough that none ends early; without
it the same prompts go on past their end. Both make the same number of tokens.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import TYPE_CHECKING

from benchmarks.results_file import Row, merge_rows

if TYPE_CHECKING:
    from tokenspeed import LLM, SamplingParams

COMMAND = "python -m benchmarks.serving.grammar"
BATCH, NEW_TOKENS = 32, 64
PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
        "note": {"anyOf": [{"type": "null"}, {"type": "string"}]},
    },
    "required": ["name", "age", "tags", "note"],
    "additionalProperties": False,
}
SCHEMA = {"type": "array", "items": PERSON, "minItems": 12}
TARGET = ">= 0.95x"


def params_of(grammar: bool) -> list[SamplingParams]:
    """Return the parameters of a batch."""
    from tokenspeed import SamplingParams
    from tokenspeed.contracts.grammar import GrammarSpec

    spec = GrammarSpec("json_schema", json.dumps(SCHEMA), closed=True) if grammar else None
    return [
        SamplingParams(
            temperature=0.8, seed=seed, max_tokens=NEW_TOKENS, grammar=spec, ignore_eos=not grammar
        )
        for seed in range(BATCH)
    ]


def seconds_of(llm: LLM, params: list[SamplingParams]) -> float:
    """Answer a batch; return how long it took.

    Raises:
        ValueError: an answer has another length, so that the times cannot be compared.
    """
    prompts = [f"People of town {index} as a JSON list: " for index in range(BATCH)]
    started_s = time.perf_counter()
    outputs = llm.generate(prompts, params)
    seconds = time.perf_counter() - started_s
    lengths = {len(output.token_ids) for output in outputs}
    if lengths != {NEW_TOKENS}:
        raise ValueError(f"answers have {sorted(lengths)} tokens, needed are {NEW_TOKENS} each")
    return seconds


def measure(llm: LLM, rounds: int) -> Row:
    """Time both in turns; the first round compiles the grammar and fills the prefix cache."""
    both = {"on": params_of(True), "off": params_of(False)}
    seconds: dict[str, list[float]] = {name: [] for name in both}
    for turn in range(rounds + 1):
        for name in sorted(both, reverse=bool(turn % 2)):
            taken = seconds_of(llm, both[name])
            if turn:
                seconds[name].append(taken)
    tokens = BATCH * NEW_TOKENS
    on, off = (tokens / statistics.median(seconds[name]) for name in ("on", "off"))
    ratios = [b / a for a, b in zip(seconds["on"], seconds["off"], strict=True)]
    print(f"on {on:.1f} tok/s, off {off:.1f}, ratios {' '.join(f'{r:.3f}' for r in ratios)}")
    return Row(
        group="structured output",
        name="JSON schema on every row, SmolLM2-135M dense, batch 32",
        value=round(on, 1),
        unit="tok/s",
        better="higher",
        peer="without a grammar",
        peer_value=round(off, 1),
        ratio=round(statistics.median(ratios), 3),
        target=TARGET,
        command=COMMAND,
    )


def main() -> None:
    """Measure and merge the row into this machine's results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="?", default="")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dry", action="store_true", help="print only")
    args = parser.parse_args()
    from tokenspeed import LLM, __version__

    with LLM(args.model, weights="dense", kv_gib=0.5, max_running=BATCH) as llm:
        row = measure(llm, args.rounds)
    if not args.dry:
        merge_rows([row], {"tokenspeed": __version__})


if __name__ == "__main__":
    main()
