"""The load behind `tokenspeed bench`: streaming completions over HTTP, timed at the client.

Standard library only; one thread a connection. Prompts are random words cut to length by the
server's own /tokenize, so that no two share a prefix.
"""

from __future__ import annotations

import contextlib
import json
import queue
import random
import statistics
import threading
import time
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenspeed.cli.connection import ServerAddress
from tokenspeed.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT_S = 600
_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """What to send; `model` None: the server's first."""

    url: str
    model: str | None
    api_key: str
    concurrency: int
    num_requests: int
    prompt_tokens: int
    output_tokens: int
    seed: int

    @property
    def server(self) -> ServerAddress:
        """Where to send it."""
        return ServerAddress(self.url, self.api_key, TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Timing:
    """One answer: seconds to the first and to the last token, and how many tokens."""

    first_s: float
    last_s: float
    num_tokens: int
    cached_tokens: int
    recomputed_tokens: int = 0
    match_ends: tuple[str, ...] = ()
    """Why the prompt's match ended, from servers that say so."""


def measure(load: Load, *, on_done: Callable[[int], None]) -> tuple[list[Timing | str], float]:
    """Run the load after one warm-up request; return timings (or errors) and wall seconds.

    Args:
        on_done: told how many requests have ended, about twice a second.
    """
    model = load.model or _first_model(load)
    chooser = random.Random(load.seed)
    prompts = [_prompt(load, chooser) for _ in range(load.num_requests + 1)]
    warm = _timed(load, model, prompts.pop())
    if isinstance(warm, str):
        raise EngineError(f"{load.url} does not answer as needed: {warm}; see the server's log")
    started_s = time.perf_counter()
    timings = _run_all(load, model, prompts, on_done)
    return timings, time.perf_counter() - started_s


def _run_all(
    load: Load, model: str, prompts: list[list[int]], on_done: Callable[[int], None]
) -> list[Timing | str]:
    """Send prompts in order, `concurrency` at once.

    The threads are daemons: an interrupt must not wait for answers that still run.
    """
    waiting: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
    for prompt in prompts:
        waiting.put(prompt)
    done: queue.SimpleQueue[Timing | str] = queue.SimpleQueue()

    def work() -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                done.put(_timed(load, model, waiting.get_nowait()))

    for _ in range(load.concurrency):
        threading.Thread(target=work, daemon=True).start()
    timings: list[Timing | str] = []
    while len(timings) < len(prompts):
        with contextlib.suppress(queue.Empty):
            timings.append(done.get(timeout=_POLL_S))
        on_done(len(timings))
    return timings


def summary(load: Load, timings: list[Timing | str], wall_s: float) -> dict[str, Any]:
    """Return the figures: times in ms, rates in tok/s; medians over the requests."""
    good = [timing for timing in timings if isinstance(timing, Timing)]
    errors = [timing for timing in timings if isinstance(timing, str)]
    gaps = [
        (timing.last_s - timing.first_s) / (timing.num_tokens - 1)
        for timing in good
        if timing.num_tokens > 1
    ]
    gap_s = statistics.median(gaps) if gaps else None
    output_tokens = sum(timing.num_tokens for timing in good)
    return {
        "url": load.url,
        "concurrency": load.concurrency,
        "requests": load.num_requests,
        "failed": len(errors),
        "first_error": errors[0] if errors else None,
        "prompt_tokens": load.prompt_tokens,
        "output_tokens": output_tokens,
        "cached_tokens": sum(timing.cached_tokens for timing in good),
        "recomputed_tokens": sum(timing.recomputed_tokens for timing in good),
        "match_ends": dict(Counter(end for timing in good for end in timing.match_ends)),
        "wall_s": round(wall_s, 3),
        "ttft_ms_p50": _ms(statistics.median(timing.first_s for timing in good)) if good else None,
        "ttft_ms_max": _ms(max(timing.first_s for timing in good)) if good else None,
        "tpot_ms_p50": None if gap_s is None else _ms(gap_s),
        # All tokens of a stream may arrive in one piece; then there is no rate to name.
        "tok_s_per_user_p50": round(1 / gap_s, 1) if gap_s else None,
        "tok_s": round(output_tokens / wall_s, 1),
    }


def summary_lines(figures: dict[str, Any]) -> list[str]:
    """Return the figures as aligned lines."""
    rows = [
        ("requests", f"{figures['requests']} ({figures['failed']} failed)"),
        ("concurrency", str(figures["concurrency"])),
        ("prompt", f"{figures['prompt_tokens']} tokens"),
        ("output", f"{figures['output_tokens']} tokens in {figures['wall_s']:.1f} s"),
        ("TTFT", f"{figures['ttft_ms_p50']} ms median, {figures['ttft_ms_max']} ms longest"),
        ("TPOT", f"{figures['tpot_ms_p50']} ms median"),
        ("per user", f"{figures['tok_s_per_user_p50']} tok/s median"),
        ("throughput", f"{figures['tok_s']} tok/s"),
        ("cache", _cache_text(figures)),
    ]
    if figures["first_error"]:
        rows.append(("first error", figures["first_error"]))
    return [f"{name:<12}{text}" for name, text in rows]


def _cache_text(figures: dict[str, Any]) -> str:
    """Say what the server's prefix cache did, and why it did no more."""
    text = f"{figures['cached_tokens']} tokens cached, {figures['recomputed_tokens']} recomputed"
    ends = sorted(figures["match_ends"].items(), key=lambda item: -item[1])
    if ends:
        text += "; matches ended: " + ", ".join(f"{reason} {count}" for reason, count in ends)
    return text


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)


def _timed(load: Load, model: str, prompt: list[int]) -> Timing | str:
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": load.output_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    try:
        return _stream(load, body)
    except EngineError as error:
        return str(error)
    except Exception as error:  # a thread that ended would leave its requests uncounted
        return f"{type(error).__name__}: {error}"


def _stream(load: Load, body: dict[str, Any]) -> Timing:
    started_s = time.perf_counter()
    first_s = last_s = 0.0
    usage: dict[str, Any] | None = None
    connection, response = load.server.send("POST", "/v1/completions", body)
    try:
        for line in response:
            if not line.startswith(b"data: {"):
                continue
            now_s = time.perf_counter() - started_s
            event = json.loads(line[6:])
            if "error" in event:
                raise EngineError(event["error"]["message"])
            if event.get("usage"):
                usage = event["usage"]
                continue
            first_s, last_s = first_s or now_s, now_s
    finally:
        connection.close()
    if usage is None:
        raise EngineError("the stream ended without its usage")
    details = usage.get("prompt_tokens_details") or {}
    return Timing(
        first_s,
        last_s,
        usage["completion_tokens"],
        details.get("cached_tokens") or 0,
        details.get("recomputed_tokens") or 0,
        tuple(end["reason"] for end in details.get("match_ends") or ()),
    )


def _first_model(load: Load) -> str:
    return str(load.server.json("GET", "/v1/models")["data"][0]["id"])


def _prompt(load: Load, chooser: random.Random) -> list[int]:
    """Return random token ids of text that the server's tokenizer made."""
    tokens: list[int] = []
    while len(tokens) < load.prompt_tokens:
        words = " ".join(
            "".join(chooser.choices("abcdefghijklmnopqrstuvwxyz", k=chooser.randint(2, 9)))
            for _ in range(load.prompt_tokens)
        )
        tokens += load.server.json("POST", "/tokenize", {"prompt": words})["tokens"]
    return tokens[: load.prompt_tokens]
