"""Prefix hit rates of the real scheduler on traces, default policy and LRU in one run.

The agentic and the Mooncake trace come from $TRACES or --traces and are left out without it; equal
sessions and a uniform random load are made here. Figures go to `benchmarks/results/`.

Usage: hit_rates.py [--traces DIR] [--only agentic,mooncake,equal,uniform]
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.results_file import Row, merge_rows  # noqa: E402
from sessions import SERVICE_S, SHARED_TOKENS, make_sessions  # noqa: E402

from tokenspeed.scheduler.policies import LruPolicy, ReturnTimePolicy  # noqa: E402
from tokenspeed.simulator import (  # noqa: E402
    Conversation,
    SimulatorSettings,
    Trace,
    Turn,
    ideal_hit_rate,
    read_trace,
    replay,
)

COMMAND = "benchmarks/control_plane/hit_rates.py --traces DIR"
LOADS = ("agentic", "mooncake", "equal", "uniform")
FILES = {"agentic": "agentic_coding_355a.jsonl.gz", "mooncake": "mooncake_conversation.jsonl.gz"}


@dataclass(frozen=True, slots=True)
class Case:
    """One load at one pool size.

    Args:
        pool_tokens: 0 is unlimited.
        least: goal for the default policy; None: LRU's figure less half a point.
    """

    name: str
    trace: Trace
    pool_tokens: int
    least: float | None = None
    max_pause_s: float = 60.0


def agentic(trace: Trace) -> Iterator[Case]:
    """The goals of the recorded coding sessions, 64 at once."""
    goals = {8: 0.855, 4: 0.535, 2: 0.320, 1: 0.160}
    yield Case("355a, unlimited", trace, 0)
    for millions, least in goals.items():
        yield Case(f"355a, {millions}M tokens", trace, millions * 1_000_000, least)


def mooncake(trace: Trace) -> Iterator[Case]:
    """Chat without sessions: nothing to learn, nothing to lose."""
    yield Case("Mooncake, unlimited", trace, 0)
    for millions in (8, 4, 2, 1):
        yield Case(f"Mooncake, {millions}M tokens", trace, millions * 1_000_000)


def equal() -> Iterator[Case]:
    """64 equal sessions, as in workload W2."""
    sessions, _, working_set = make_sessions()
    block, conversations = 100, []
    per_session = 10_000
    for session in sessions:
        first = (session.sid + 1) * per_session
        turns = []
        for turn in range(session.turns):
            length = session.head + turn * (session.out + session.tool)
            pause_s = session.latency_s[turn - 1] if turn else 0.0
            runs = ((0, SHARED_TOKENS // block), (first, (length - SHARED_TOKENS) // block))
            turns.append(Turn(length, session.out, SERVICE_S, pause_s, runs))
        conversations.append(Conversation(tuple(turns), session.start_s))
    trace = Trace("equal sessions", block, tuple(conversations))
    for percent in (100, 50, 25):
        pool = working_set * percent // 100 + (16_384 if percent == 100 else 0)
        yield Case(f"64 equal sessions, {percent} %", trace, pool, max_pause_s=math.inf)


def uniform() -> Iterator[Case]:
    """128 prompts of 62,500 tokens, asked for at random."""
    rng = random.Random(3)
    turns: list[list[tuple[float, Turn]]] = [[] for _ in range(128)]
    now_s = 0.0
    for _ in range(6000):
        now_s += rng.expovariate(2.0)
        number = rng.randrange(128)
        last_s = turns[number][-1][0] if turns[number] else now_s
        turn = Turn(62_500, 1, 0.0, now_s - last_s, ((number * 1000, 976),))
        turns[number].append((now_s, turn))
    conversations = tuple(
        Conversation(tuple(turn for _, turn in item), item[0][0]) for item in turns
    )
    trace = Trace("uniform", 64, conversations)
    for millions in (6, 4, 2, 1):
        yield Case(f"uniform, {millions}M tokens", trace, millions * 1_000_000, None, math.inf)


def cases(names: list[str], traces: str | None) -> Iterator[Case]:
    """All chosen loads that are there."""
    readers = {"agentic": agentic, "mooncake": mooncake}
    for name in names:
        if name in readers and traces:
            yield from readers[name](read_trace(Path(traces) / FILES[name]))
        elif name in readers:
            print(f"{name}: no --traces and no $TRACES, left out", file=sys.stderr)
        else:
            yield from {"equal": equal, "uniform": uniform}[name]()


def measure(case: Case) -> Row:
    """Run one case with both policies, or against the ideal where nothing is evicted."""
    settings = SimulatorSettings(pool_tokens=case.pool_tokens, max_pause_s=case.max_pause_s)
    ours = replay(case.trace, settings, ReturnTimePolicy(), step_model=None).hit_rate
    if case.pool_tokens:
        peer = "LRU"
        other = replay(case.trace, settings, LruPolicy(), step_model=None).hit_rate
    else:
        peer = "ideal"
        other = ideal_hit_rate(
            case.trace, pool_tokens=None, num_places=64, max_pause_s=case.max_pause_s
        )
    least = case.least if case.least is not None else other - 0.005
    verdict = "ok" if ours >= least else "MISSED"
    print(f"{case.name:<28} {ours:.4f}  {peer} {other:.4f}  >= {least:.3f} {verdict}", flush=True)
    return Row(
        group="control plane hit rate",
        name=case.name,
        value=round(100 * ours, 2),
        unit="%",
        better="higher",
        command=COMMAND,
        peer=peer,
        peer_value=round(100 * other, 2),
        peer_date="same run",
        ratio=ours / other,
        target=f">= {100 * least:.1f}",
    )


def main() -> None:
    """Measure, merge into the machine's file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", default=os.environ.get("TRACES"))
    parser.add_argument("--only", default=",".join(LOADS))
    parser.add_argument("--dry", action="store_true", help="print only")
    arguments = parser.parse_args()
    rows = [measure(case) for case in cases(arguments.only.split(","), arguments.traces)]
    if not arguments.dry:
        print(f"written to {merge_rows(rows, {})}", file=sys.stderr)


if __name__ == "__main__":
    main()
