"""Workloads without sessions: decode steady state, long prompts, eviction churn."""

from __future__ import annotations

import random
from typing import Any

from drive import is_cache_level, prepare, run_to_end, step
from figures import SEED, clock, freeze, percentile, random_tokens, summary


def decode_steps(maker: Any, n: int, ctx: int = 8192, steps: int = 300) -> dict[str, Any]:
    """W1: `n` running requests of `ctx` tokens, one token each a step."""
    warm = 30
    # An engine may decode early rows while late ones still prefill.
    life = steps + warm + n * ctx // 8192 * 2 + 200
    engine = maker.make(
        pool_tokens=n * (ctx + 128 + life) + 65_536,
        max_running=n,
        token_budget=8192,
        max_len=ctx + 128 + life,
    )
    if is_cache_level(engine):
        return engine.w1(n, ctx, steps, warm)
    rng = random.Random(SEED + n)
    for i in range(n):
        prompt = random_tokens(rng, ctx + (i * 7) % 64)
        engine.submit(f"r{i}", prepare(engine, prompt), life)
    _prefill_all(engine, n, ctx)
    freeze()
    plans, commits = [], []
    for k in range(steps + warm):
        plan_s, commit_s, rows, _ = step(engine, lambda rid: (17, False))
        assert len(rows) == n, (len(rows), n)
        if k >= warm:
            plans.append(plan_s)
            commits.append(commit_s)
    totals = [a + b for a, b in zip(plans, commits, strict=True)]
    return {
        "N": n,
        "ctx": ctx,
        "plan_us": summary(plans),
        "commit_us": summary(commits),
        "step_us": summary(totals),
        "ns_per_req": round(percentile(totals, 0.5) / n * 1e9, 1),
    }


def _prefill_all(engine: Any, n: int, ctx: int) -> None:
    for _ in range(4 * n * (ctx // 8192 + 2) + 50):
        _, _, rows, _ = step(engine, lambda rid: (17, False))
        if sum(not row[3] for row in rows) == n:
            return
    raise AssertionError("prefill does not finish")


def long_prompt(maker: Any, length: int, reps: int = 3) -> dict[str, Any]:
    """W3: one prompt of `length` tokens, cold, then again with 100 tokens more."""
    results = [_long_prompt_once(maker, length, rep) for rep in range(reps)]
    first = results[0]
    return {"length": length} | {
        key: round(percentile([result[key] for result in results], 0.5), 3)
        if isinstance(first[key], (int, float))
        else first[key]
        for key in first
    }


def _long_prompt_once(maker: Any, length: int, rep: int) -> dict[str, Any]:
    engine = maker.make(
        pool_tokens=length + 65_536, max_running=4, token_budget=8192, max_len=length + 4096
    )
    prompt = random_tokens(random.Random(SEED + length + rep), length)
    if is_cache_level(engine):
        return engine.w3(prompt)
    freeze()
    figures: dict[str, Any] = {}
    for phase, tokens in (("cold", prompt), ("warm", prompt + [7] * 100)):
        figures |= {f"{phase}_{key}": v for key, v in _phase(engine, phase, tokens).items()}
    return figures


def _phase(engine: Any, rid: str, tokens: list[int]) -> dict[str, Any]:
    prompt = prepare(engine, tokens)
    start = clock()
    engine.submit(rid, prompt, 8)
    figures: dict[str, Any] = {"submit_ms": (clock() - start) * 1e3}
    plans, commits, decodes, sampled = [], [], [], 0
    while True:
        plan_s, commit_s, rows, finished = step(engine, lambda _, i=sampled: (9, i >= 7))
        if not plans:
            figures["cached"] = rows[0][1]
        if rows[0][3]:
            plans.append(plan_s)
            commits.append(commit_s)
        elif not finished:
            decodes.append(plan_s + commit_s)
        sampled += rows[0][4]
        if finished:
            figures["free_ms"] = commit_s * 1e3
            break
    start = clock()
    engine.idle()
    return figures | {
        "reap_ms": (clock() - start) * 1e3,
        "first_plan_ms": plans[0] * 1e3,
        "all_chunks_ms": (sum(plans) + sum(commits)) * 1e3,
        "chunks": len(plans),
        "max_chunk_ms": max(plans) * 1e3,
        "decode_us": percentile(decodes, 0.5) * 1e6 if decodes else None,
    }


def eviction_churn(
    maker: Any, pool: int = 1 << 20, prompt_tokens: int = 8192, churn: int = 300
) -> dict[str, Any]:
    """W4: the pool is full of cached blocks, every admission evicts."""
    engine = maker.make(
        pool_tokens=pool + 2048,
        max_running=4,
        token_budget=8192 + 64,
        max_len=prompt_tokens + 512,
    )
    rng = random.Random(SEED)
    filling = pool // prompt_tokens
    fills, evictions = [], []
    freeze()
    for i in range(filling + 8 + churn):
        parts = _one_prompt(engine, f"c{i}", random_tokens(rng, prompt_tokens))
        if i < filling - 8:
            fills.append(parts)
        elif i >= filling + 8:
            evictions.append(parts)
    return {
        "pool_tokens": pool,
        "prompt": prompt_tokens,
        "block": engine.block_size,
        "no_evict_us": summary([sum(parts) for parts in fills]),
        "evict_us": summary([sum(parts) for parts in evictions]),
    } | {
        f"{name}_us": summary([parts[i] for parts in evictions])
        for i, name in enumerate(("submit", "plan", "finish"))
    }


def _one_prompt(engine: Any, rid: str, tokens: list[int]) -> tuple[float, float, float]:
    """Seconds of submit, of all plans, and of all commits until it ended."""
    prompt = prepare(engine, tokens)
    start = clock()
    if is_cache_level(engine):
        engine.admit(rid, prompt, 1)
        admitted = clock()
        engine.finish(rid, [3])
        return 0.0, admitted - start, clock() - admitted
    engine.submit(rid, prompt, 1)
    submit_s = clock() - start
    plans, commits = run_to_end(engine, lambda _: (3, True))
    start = clock()
    engine.idle()
    return submit_s, plans, commits + clock() - start
