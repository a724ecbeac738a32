"""AIPerf's replay of its own trace of coding agents: its hit rate, ours, and what was possible.

Usage: python -m benchmarks.serving.aiperf_replay [--sessions 3] [--seed 7] [--dry]
AIPerf (`make judges`) makes a trace, and plays it against a server with the scripted model. Its
report counts the cached tokens of our usage; our metrics count them in the engine; the trace says
what could have been cached; and `tokenspeed bench agentic` plays the same trace for itself. All
four agree within a point, or this ends with 1.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))  # for tests.support

from benchmarks.results_file import Row, merge_rows  # noqa: E402
from tests.support.scripted import write_scripted_model  # noqa: E402
from tests.support.server import ServerProcess  # noqa: E402

from tokenspeed import __version__  # noqa: E402
from tokenspeed.simulator import read_trace  # noqa: E402

COMMAND = "python -m benchmarks.serving.aiperf_replay"
AIPERF = ROOT / ".cache/clients/aiperf/bin/aiperf"
CONTEXT = 262_144
MAX_POINTS = 1.0
TOKENIZER, REVISION = "tokenspeed/scripted", "0" * 40


def synthesized(folder: Path, sessions: int, seed: int) -> Path:
    """Let AIPerf make a trace; return it."""
    sizes = ("--num-sessions", str(sessions), "--seed", str(seed), "--max-isl", "70000")
    run(AIPERF, "synthesize", "agentic-code", "--output", folder, *sizes)
    (found,) = folder.glob("*/dataset.jsonl")
    return found


def best_rate(trace: Path) -> float:
    """Return the share of prompt tokens that a cache can have, sessions one after another."""
    seen: set[int] = set()
    cached = total = 0
    for conversation in read_trace(trace).conversations:
        before = 0
        for number, turn in enumerate(conversation.turns):
            ids = [i for first, count in turn.runs for i in range(first, first + count)]
            if number == 0:
                shared = next((n for n, i in enumerate(ids) if i not in seen), len(ids))
                cached += shared * 512
            else:
                cached += before
            total += turn.prompt_tokens
            seen.update(ids)
            before = turn.prompt_tokens + turn.output_tokens
    return 100 * cached / total


def put_into_cache(model: Path, cache: Path) -> None:
    """Put a tokenizer where offline programs look for one of a hub, under the name TOKENIZER."""
    place = cache / "hub" / f"models--{TOKENIZER.replace('/', '--')}"
    snapshot = place / "snapshots" / REVISION
    shutil.copytree(model, snapshot)
    config = snapshot / "tokenizer_config.json"
    told = json.loads(config.read_text(encoding="utf-8"))
    config.write_text(json.dumps(told | {"tokenizer_class": "PreTrainedTokenizerFast"}))
    (place / "refs").mkdir()
    (place / "refs" / "main").write_text(REVISION)


def played(server: ServerProcess, trace: Path, folder: Path) -> float:
    """Let AIPerf play the trace; return the rate of its report."""
    run(
        *(AIPERF, "profile", "--url", server.url, "--model", server.model),
        *("--tokenizer", TOKENIZER),
        *("--endpoint-type", "chat", "--streaming", "--use-server-token-count", "--ui", "none"),
        *("--input-file", trace, "--custom-dataset-type", "mooncake_trace"),
        *("--no-fixed-schedule", "--ignore-trace-delays", "--concurrency", 1),
        *("--extra-inputs", "ignore_eos:true", "--output-artifact-dir", folder),
        HF_HUB_OFFLINE="1",
        HF_HOME=str(folder.parent / "hub-cache"),
    )
    report: Any = json.loads((folder / "profile_export_aiperf.json").read_text(encoding="utf-8"))
    return float(report["overall_usage_prompt_cache_read_pct"]["avg"])


def engine_counts(server: ServerProcess) -> tuple[float, float]:
    """Return prompt tokens and cached tokens of the engine so far."""
    cache = server.call("/v1/engine/state").json()["cache"]
    computed = cache["created_tokens"] + cache["recomputed_tokens"]
    return cache["cached_tokens"] + computed, cache["cached_tokens"]


def benched(server: ServerProcess, trace: Path, folder: Path) -> float:
    """Play the trace with `tokenspeed bench agentic`; return its rate."""
    run(
        *(sys.executable, "-m", "tokenspeed", "bench", "agentic", "--url", server.url),
        *("--trace", trace, "--sessions", 1, "--pause-scale", 0, "--chars-per-token", 1),
        *("--out", folder),
    )
    results: Any = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return 100 * float(results["points"][0]["hit_rate"])


def run(*command: object, **environ: str) -> None:
    """Run a command to its end, with more in its environment.

    Raises:
        RuntimeError: it failed; with the end of what it said.
    """
    together = {**os.environ, **environ}
    done = subprocess.run([*map(str, command)], env=together, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{command[0]} {command[1]}: {(done.stdout + done.stderr)[-3000:]}")


def measure(sessions: int, seed: int, folder: Path) -> dict[str, float]:
    """Return the four rates, in percent."""
    trace = synthesized(folder / "trace", sessions, seed)
    model = write_scripted_model(folder / "hashed", max_position_embeddings=CONTEXT)
    put_into_cache(model, folder / "hub-cache")
    with ServerProcess(model, folder, "--max-step-tokens", "8192", "--kv-gib", "2") as server:
        rates = {"possible": best_rate(trace)}
        rates["AIPerf's report"] = played(server, trace, folder / "aiperf")
        prompt, cached = engine_counts(server)
        rates["the engine's count"] = 100 * cached / prompt
        rates["bench agentic"] = benched(server, trace, folder / "bench")
    return rates


def main() -> None:
    """Measure, compare, and merge the row into this machine's results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--dry", action="store_true", help="print only")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rates = measure(args.sessions, args.seed, Path(folder))
    for name, rate in rates.items():
        print(f"{name:<20} {rate:.2f} %")
    if max(rates.values()) - min(rates.values()) > MAX_POINTS:
        raise SystemExit(f"the rates differ by more than {MAX_POINTS:g} point")
    row = Row(
        group="agents",
        name=f"hit rate of AIPerf's agentic-code trace, {args.sessions} sessions, its own report",
        value=round(rates["AIPerf's report"], 2),
        unit="%",
        better="higher",
        peer="possible by the trace",
        peer_value=round(rates["possible"], 2),
        ratio=round(rates["AIPerf's report"] / rates["possible"], 3),
        target="within 1 point",
        command=COMMAND,
    )
    if not args.dry:
        merge_rows([row], {"tokenspeed": __version__, "aiperf": "0.13.0"})


if __name__ == "__main__":
    main()
