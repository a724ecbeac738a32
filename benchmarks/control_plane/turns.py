"""Workloads of sessions: equal agents that return turn by turn, and the real agentic trace."""

from __future__ import annotations

import gzip
import heapq
import json
import random
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from drive import is_cache_level, prepare, step, tell
from figures import SEED, clock, freeze, random_tokens, summary
from sessions import Session, ideal_lru, ideal_next_use, make_sessions

TRACE = "agentic_coding_355a.jsonl.gz"


@dataclass(slots=True)
class Times:
    """Seconds of each part of a request, over all requests."""

    submit: list[float] = field(default_factory=list)
    first_plan: list[float] = field(default_factory=list)
    later_chunks: list[float] = field(default_factory=list)
    finish: list[float] = field(default_factory=list)
    decode: list[float] = field(default_factory=list)

    def summaries(self) -> dict[str, Any]:
        """Summaries by the names of the results; None for what an engine does not have."""
        admission = (
            [a + b for a, b in zip(self.submit, self.first_plan, strict=True)]
            if self.submit
            else self.first_plan
        )
        parts = {
            "submit_us": self.submit,
            "first_plan_us": self.first_plan,
            "admission_us": admission,
            "later_chunks_us": self.later_chunks,
            "finish_us": self.finish,
            "decode_step_us": self.decode,
        }
        return {name: summary(part) if part else None for name, part in parts.items()}


def agentic_turns(maker: Any, fraction: float, is_delta: bool = False) -> dict[str, Any]:
    """W2, and W2d with delta submits: 64 sessions x 30 turns, a pool of part of what they need."""
    sessions, order, working_set = make_sessions()
    pool = max(int(working_set * fraction), 120_000)
    engine = maker.make(
        pool_tokens=pool + (2 * 64 * 64 if fraction >= 1 else 0),
        max_running=32,
        token_budget=8192,
        max_len=140_000,
    )
    times, hit, total = Times(), 0, 0
    freeze()
    for sid, turn in order:
        session = sessions[sid]
        tell(engine, sid, session.when_s[turn])
        total += session.head + turn * (session.out + session.tool)
        hit += _turn(engine, session, turn, is_delta, times)
    block = engine.block_size
    return {
        "frac": fraction,
        "pool_tokens": pool,
        "working_set": working_set,
        "requests": len(order),
        "prompt_tokens": total,
        "block": block,
        **times.summaries(),
        "hit_rate": round(hit / total, 4),
        "lru_block_hit_rate": round(ideal_lru(sessions, order, pool, block), 4),
        "session_opt_hit_rate": round(ideal_next_use(sessions, order, pool), 4),
        "infinite_hit_rate": round(ideal_lru(sessions, order, None, block), 4),
    }


def _turn(engine: Any, session: Session, turn: int, is_delta: bool, times: Times) -> int:
    """Run one turn to its end; returns its cached tokens."""
    rid, output = f"s{session.sid}.{turn}", session.output(turn)
    if is_cache_level(engine):
        return _cache_turn(engine, rid, session.prompt(turn), output, times)
    if is_delta and turn:
        base = engine.turn_base(session.sid)
        tokens = prepare(engine, session.new_ids(turn))
        start = clock()
        engine.submit_turn(rid, session.sid, base, tokens, len(output))
    else:
        tokens = prepare(engine, session.prompt(turn))
        start = clock()
        engine.submit(rid, tokens, len(output))
    times.submit.append(clock() - start)
    return _run_turn(engine, rid, output, times)


def _cache_turn(engine: Any, rid: str, prompt: list[int], output: list[int], times: Times) -> int:
    tokens = prepare(engine, prompt)
    start = clock()
    hit: int = engine.admit(rid, tokens, len(output))
    admitted = clock()
    engine.finish(rid, output)
    times.first_plan.append(admitted - start)
    times.finish.append(clock() - admitted)
    return hit


def _run_turn(engine: Any, rid: str, output: list[int], times: Times) -> int:
    hit, sampled, later_s, is_first = 0, 0, 0.0, True
    while True:
        plan_s, commit_s, rows, finished = step(
            engine, lambda _, i=sampled: (output[i], i + 1 >= len(output))
        )
        _, start, _, is_prefill, is_prompt_done = next(row for row in rows if row[0] == rid)
        if is_first:
            is_first, hit = False, start
            times.first_plan.append(plan_s)
        elif is_prefill:
            later_s += plan_s + commit_s
        if is_prompt_done:
            if finished:
                times.finish.append(commit_s)
            elif not is_prefill:
                times.decode.append(plan_s + commit_s)
            sampled += 1
        if finished:
            times.later_chunks.append(later_s)
            return hit


def real_trace(
    maker: Any, pool: int, traces: Path, count: int = 32, max_requests: int = 1500
) -> dict[str, Any]:
    """W5: the agentic trace, `count` sessions at once, one output token a request."""
    with gzip.open(traces / TRACE, "rt") as file:
        parsed = (json.loads(line)["req"] for line in file)
        long = [requests for requests in parsed if len(requests) >= 20][:count]
    streams = [_stream(seed, requests) for seed, requests in enumerate(long)]
    order = _arrivals(long, max_requests)
    engine = maker.make(pool_tokens=pool, max_running=4, token_budget=8192, max_len=1_000_000)
    ideal, unlimited = _BlockLru(pool // 64), _BlockLru(None)
    rng, times, hit, total, requests = random.Random(SEED), Times(), 0, 0, 0
    freeze()
    for sid, turn, now_s in order:
        _, _, length, _, _, _, runs = long[sid][turn]
        if length + 64 > pool or length > 990_000:
            continue
        ids = [(sid, i) for first, n in runs for i in range(first, first + n)]
        prompt = [t for first, n in runs for t in streams[sid][first * 64 : (first + n) * 64]]
        prompt += random_tokens(rng, length - len(prompt))
        for cache in (ideal, unlimited):
            cache.take(ids, length)
        tell(engine, sid, now_s)
        hit += _one_token(engine, f"t{sid}.{turn}", prompt, times)
        total += length
        requests += 1
    return {
        "pool_tokens": pool,
        "sessions": len(long),
        "requests": requests,
        "skipped": len(order) - requests,
        "mean_prompt": total // max(1, requests),
        "block": engine.block_size,
        **times.summaries(),
        "hit_rate": round(hit / total, 4),
        "lru64_hit_rate": round(ideal.hit_tokens / total, 4),
        "infinite_hit_rate": round(unlimited.hit_tokens / total, 4),
    }


def _stream(seed: int, requests: list[Any]) -> list[int]:
    blocks = 1 + max(first + n for request in requests for first, n in request[6])
    return random_tokens(random.Random(SEED + seed), 64 * blocks)


def _arrivals(sessions: list[Any], max_requests: int) -> list[tuple[int, int, float]]:
    heap, order = [(float(sid), sid, 0) for sid in range(len(sessions))], []
    heapq.heapify(heap)
    while heap and len(order) < max_requests:
        now_s, sid, turn = heapq.heappop(heap)
        order.append((sid, turn, now_s))
        if turn + 1 < len(sessions[sid]):
            api_s = sessions[sid][turn][4] or 5.0
            think_s = min(sessions[sid][turn + 1][5] or 0.0, 60)
            heapq.heappush(heap, (now_s + api_s + think_s, sid, turn + 1))
    return order


def _one_token(engine: Any, rid: str, prompt: list[int], times: Times) -> int:
    if is_cache_level(engine):
        return _cache_turn(engine, rid, prompt, [3], times)
    tokens = prepare(engine, prompt)
    start = clock()
    engine.submit(rid, tokens, 1)
    times.submit.append(clock() - start)
    hit, later_s, is_first = 0, 0.0, True
    while True:
        plan_s, commit_s, rows, finished = step(engine, lambda _: (3, True))
        if is_first:
            is_first, hit = False, next(row[1] for row in rows if row[0] == rid)
            times.first_plan.append(plan_s)
        else:
            later_s += plan_s
        if finished:
            times.finish.append(commit_s)
            times.later_chunks.append(later_s)
            return hit
        later_s += commit_s


class _BlockLru:
    """Hits of an LRU over the trace's own blocks, tails first; None: unlimited."""

    def __init__(self, capacity: int | None) -> None:
        self.hit_tokens = 0
        self._capacity = capacity
        self._cached: OrderedDict[tuple[int, int], None] = OrderedDict()

    def take(self, ids: list[tuple[int, int]], length: int) -> None:
        """Count a request's hits and keep its blocks."""
        found = next((i for i, key in enumerate(ids) if key not in self._cached), len(ids))
        self.hit_tokens += min(found, (length - 1) // 64) * 64
        for key in reversed(ids):
            self._cached[key] = None
            self._cached.move_to_end(key)
        while self._capacity is not None and len(self._cached) > self._capacity:
            self._cached.popitem(last=False)
