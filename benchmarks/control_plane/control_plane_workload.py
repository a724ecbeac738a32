"""Deterministic CPU-side workloads for an LLM engine's control plane: no device, no model.

A workload drives a scheduler and its KV block manager through the calls that an engine loop makes
(submit, plan, commit) and times them.

  W1   decode steady state  N running requests, 8k context, 1 token each a step
  W2   agentic turns        64 sessions x 30 turns, 50k history, pool of 100 / 50 / 25 % of
                            what they need
  W2d  the same with delta submits
  W3   long prompt          one prompt of 128k / 512k / 1M tokens
  W4   eviction churn       pool full of cached blocks, every admission evicts
  W5   agentic trace        1,500 requests of real coding-agent sessions ($TRACES or --traces)

An adapter (peers/*.py, peer_ours.py) is a module with

    make(pool_tokens, max_running, token_budget, max_len) -> engine
    engine.name, engine.block_size
    engine.submit(rid, tokens, max_new)          tokens: list[int]
    engine.plan() -> plan                        opaque to this file
    engine.rows(plan) -> [(rid, start, n, is_prefill, prompt_done)]
    engine.commit(plan, {rid: token}, {rid,...}) sampled tokens, finished ids
    engine.idle()                                bookkeeping left over after a step

`plan` must leave everything the device side needs (batch rows, block tables or block-table deltas)
readable from Python. `rows` is for the driver only and never timed. Engines without a step loop (a
bare prefix cache) implement `native` (untimed: tokens to the engine's own container), `admit`,
`finish`, `w1` and `w3` instead and set `cache_level = True`; their figures leave out request
bookkeeping. A step-loop engine may also have two untimed calls: `native(tokens)` (its own token
buffer) and `context(session=, now_us=)`, the session that submits next and the virtual time;
`commit_array(plan, int32 array, finished)` instead of `commit`; and for W2d `turn_base(session)`
(untimed, after the last turn) and `submit_turn(rid, session, base, new_tokens, max_new)`.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figures import clock
from turns import agentic_turns, real_trace
from workloads import decode_steps, eviction_churn, long_prompt


def numbers(text: str) -> list[int]:
    """Integers between commas."""
    return [int(part) for part in text.split(",")]


def parse() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peer", required=True, help="adapter module, e.g. peers.peer_vllm")
    parser.add_argument("--workload", default="W1,W2,W3,W4")
    parser.add_argument("--n", type=numbers, default=[1, 16, 64, 256, 1024], help="W1: requests")
    parser.add_argument("--ctx", type=int, default=8192, help="W1: context")
    parser.add_argument("--steps", type=int, default=300, help="W1: steps")
    parser.add_argument("--frac", default="1.0,0.5,0.25", help="W2: pool / working set")
    parser.add_argument("--len", type=numbers, default=[131_072, 524_288, 1_048_576], help="W3")
    parser.add_argument("--reps", type=int, default=3, help="W3: repetitions")
    parser.add_argument("--pool", type=numbers, default=[1_000_000, 2_000_000, 4_000_000])
    parser.add_argument("--traces", default=os.environ.get("TRACES"), help="W5: folder of traces")
    parser.add_argument("--out", type=Path, help="write the results as JSON")
    arguments = parser.parse_args()
    if "W5" in arguments.workload.split(",") and not arguments.traces:
        parser.error("W5 needs the folder of the traces: --traces or $TRACES")
    return arguments


def results(maker: Any, arguments: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Run the workloads one after another."""
    fractions = [float(part) for part in arguments.frac.split(",")]
    for name in arguments.workload.split(","):
        if name == "W1":
            for n in arguments.n:
                yield name, decode_steps(maker, n, arguments.ctx, arguments.steps)
        elif name in ("W2", "W2d"):
            for fraction in fractions:
                yield name, agentic_turns(maker, fraction, is_delta=name == "W2d")
        elif name == "W3":
            for length in arguments.len:
                yield name, long_prompt(maker, length, arguments.reps)
        elif name == "W4":
            yield name, eviction_churn(maker)
        elif name == "W5":
            for pool in arguments.pool:
                yield name, real_trace(maker, pool, Path(arguments.traces))
        else:
            raise SystemExit(f"unknown workload {name!r}; choose among W1 W2 W2d W3 W4 W5")


def clock_call_us() -> float:
    """Return what reading the clock costs."""
    readings = [clock() for _ in range(10_001)]
    return round((readings[-1] - readings[0]) / 1e4 * 1e6, 3)


def main() -> None:
    """Run the chosen workloads against one adapter, one JSON line each."""
    arguments = parse()
    maker = importlib.import_module(arguments.peer)
    collected: dict[str, Any] = {
        "clock": "wall" if clock is time.perf_counter else "thread_cpu",
        "clock_call_us": clock_call_us(),
        "peer": maker.NAME,
        "version": maker.VERSION,
    }
    for name, figures in results(maker, arguments):
        collected.setdefault(name, []).append(figures)
        print(name, json.dumps(figures), flush=True)
        gc.unfreeze()
        gc.collect()
    if arguments.out:
        arguments.out.write_text(json.dumps(collected, indent=1))


if __name__ == "__main__":
    main()
