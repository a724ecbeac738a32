"""What a played workload says of a server, and whether it may be compared with another."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tokenspeed.cli.agentic.client import Answer

MAX_ERROR_SHARE = 0.01


def point_of(
    answers: Sequence[Answer],
    wall_s: float,
    shared: dict[tuple[str, int], tuple[int, int]],
    *,
    at_once: int,
    devices: int,
    usd_per_device_hour: float | None,
) -> dict[str, Any]:
    """Return the figures of one run; times in ms, rates in tokens per second.

    Args:
        shared: of `best_hits.shared_chars`.
    """
    good = [answer for answer in answers if not answer.error]
    output_tokens = sum(answer.num_tokens for answer in good)
    prompt_tokens = sum(answer.prompt_tokens for answer in good)
    sessions = _session_times(good)
    usd = None
    if usd_per_device_hour is not None:
        usd = usd_per_device_hour * devices * wall_s / 3600
    return {
        "sessions_at_once": at_once,
        "sessions": len({answer.session.partition(".")[0] for answer in answers}),
        "requests": len(answers),
        "failed": len(answers) - len(good),
        "first_error": next((answer.error for answer in answers if answer.error), None),
        "wall_s": round(wall_s, 3),
        "prompt_tokens": prompt_tokens,
        "prompt_tokens_mean": _rounded(prompt_tokens / len(good) if good else None),
        "prompt_tokens_p99": _at(good, lambda answer: answer.prompt_tokens, 0.99),
        "output_tokens": output_tokens,
        "ttft_ms": _spread(1e3 * (item.first_s - item.sent_s) for item in good),
        "ttft_ms_first_turn": _spread(
            1e3 * (item.first_s - item.sent_s) for item in good if item.turn == 0
        ),
        "turn_ms": _spread(1e3 * (item.last_s - item.sent_s) for item in good),
        "session_s": _spread(sessions),
        "tps_user": _spread(_rates(good)),
        "tps_device": _rounded(output_tokens / wall_s / devices),
        "hit_rate": _share(sum(item.cached_tokens for item in good), prompt_tokens),
        "best_hit_rate": _share(
            sum(_best_cached(item, shared[item.session, item.turn]) for item in good),
            prompt_tokens,
        ),
        "usd_per_session": _rounded(usd / len(sessions), 6) if usd and sessions else None,
        "usd_per_million_output": _rounded(1e6 * usd / output_tokens) if usd and good else None,
        "void": void_reasons(answers),
    }


def void_reasons(answers: Sequence[Answer]) -> list[str]:
    """Say why a run must not be compared with others; empty: it may."""
    reasons = []
    failed = sum(1 for answer in answers if answer.error)
    if failed > MAX_ERROR_SHARE * len(answers):
        reasons.append(f"{failed} of {len(answers)} requests failed, 1 % is allowed")
    wrong = [item for item in answers if not item.error and item.num_tokens != item.asked_tokens]
    if wrong:
        reasons.append(
            f"{len(wrong)} answers have another length than asked for, such as "
            f"{wrong[0].num_tokens} tokens for {wrong[0].asked_tokens}"
        )
    return reasons


def compared(points: Sequence[dict[str, Any]]) -> list[str]:
    """Say why points must not stand in one picture: their prompts have other lengths."""
    sizes = {(point["requests"], point["prompt_tokens"]) for point in points if not point["failed"]}
    by_requests = defaultdict(set)
    for requests, tokens in sizes:
        by_requests[requests].add(tokens)
    return [
        f"runs of {requests} requests have {sorted(tokens)} prompt tokens: not the same work"
        for requests, tokens in by_requests.items()
        if max(tokens) > 1.01 * min(tokens)
    ]


def _best_cached(answer: Answer, chars: tuple[int, int]) -> float:
    """Return the most tokens that a cache could have had; the last one is always computed."""
    shared, total = chars
    return min(answer.prompt_tokens * shared / max(1, total), answer.prompt_tokens - 1)


def _session_times(good: Sequence[Answer]) -> list[float]:
    """Return how long each top-level session took, its pauses included."""
    spans: dict[str, list[float]] = {}
    for answer in good:
        if "." not in answer.session:
            span = spans.setdefault(answer.session, [math.inf, 0.0])
            span[0], span[1] = min(span[0], answer.sent_s), max(span[1], answer.last_s)
    return [end - start for start, end in spans.values()]


def _rates(good: Sequence[Answer]) -> list[float]:
    """Return the tokens per second of each stream, after its first token."""
    return [
        (item.num_tokens - 1) / (item.last_s - item.first_s)
        for item in good
        if item.num_tokens > 1 and item.last_s > item.first_s
    ]


def _spread(values: Iterable[float]) -> dict[str, float] | None:
    """Return the median and the slow tail; None without values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return {
        "p50": round(statistics.median(ordered), 3),
        "p95": round(_quantile(ordered, 0.95), 3),
        "p99": round(_quantile(ordered, 0.99), 3),
        "min": round(ordered[0], 3),
        "max": round(ordered[-1], 3),
    }


def _at(good: Sequence[Answer], of: Callable[[Answer], float], share: float) -> float | None:
    values = sorted(of(answer) for answer in good)
    return _quantile(values, share) if values else None


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def _share(part: float, whole: float) -> float | None:
    return round(part / whole, 4) if whole else None


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)
