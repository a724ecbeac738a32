"""Steps an engine through an adapter's calls, timing what is timed and nothing else."""

from __future__ import annotations

import array
from collections.abc import Callable
from typing import Any

from figures import clock

Row = tuple[str, int, int, bool, bool]
"""Request, start, tokens, is it a prefill chunk, is the prompt done."""


def tell(engine: Any, session: int | None = None, now_s: float | None = None) -> None:
    """Untimed: the session that submits next and the virtual time, for engines that use them."""
    if hasattr(engine, "context"):
        engine.context(session=session, now_us=None if now_s is None else int(now_s * 1e6))


def prepare(engine: Any, tokens: list[int]) -> Any:
    """Untimed: tokens in the engine's own buffer, as its front end would hold them."""
    return engine.native(tokens) if hasattr(engine, "native") else tokens


def is_cache_level(engine: Any) -> bool:
    """Say whether the engine is a bare prefix cache without a step loop."""
    return bool(getattr(engine, "cache_level", False))


def step(
    engine: Any, want: Callable[[str], tuple[int, bool]]
) -> tuple[float, float, list[Row], set[str]]:
    """One plan and commit; `want(rid)` is the token of a sampling row and whether it is the last.

    Returns:
        Seconds of plan, seconds of commit, the rows, the requests that ended.
    """
    before = clock()
    plan = engine.plan()
    after = clock()
    rows = engine.rows(plan)
    sampled: dict[str, int] = {}
    finished: set[str] = set()
    for rid, *_, is_prompt_done in rows:
        if is_prompt_done:
            sampled[rid], is_last = want(rid)
            if is_last:
                finished.add(rid)
    if hasattr(engine, "commit_array"):
        tokens = array.array("i", sampled.values())  # one a sampling row, in plan order
        start = clock()
        engine.commit_array(plan, tokens, finished)
    else:
        start = clock()
        engine.commit(plan, sampled, finished)
    return after - before, clock() - start, rows, finished


def run_to_end(engine: Any, want: Callable[[str], tuple[int, bool]]) -> tuple[float, float]:
    """Step until a request ends; seconds of all plans and of all commits."""
    plans = commits = 0.0
    while True:
        plan_s, commit_s, _, finished = step(engine, want)
        plans += plan_s
        commits += commit_s
        if finished:
            return plans, commits
