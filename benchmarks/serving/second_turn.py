"""What a chat user feels: first and second turn of a long conversation, start-up, step overhead."""

from __future__ import annotations

import json
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.results_file import Row

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

WORDS = [
    "river",
    "stone",
    "cloud",
    "engine",
    "paper",
    "green",
    "seven",
    "window",
    "market",
    "garden",
    "signal",
    "bridge",
]
COMMAND = "make bench"


@contextmanager
def server(model: Path) -> Iterator[tuple[str, float]]:
    """Start `tokenspeed serve` and yield (base URL, seconds until it was ready)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    start = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tokenspeed", "serve", str(model), "--port", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    url = f"http://127.0.0.1:{port}"
    try:
        while True:
            if process.poll() is not None:
                raise RuntimeError(f"the server ended: {process.stderr.read()[-2000:]}")
            try:
                with urllib.request.urlopen(f"{url}/health", timeout=1) as reply:
                    if reply.status == 200:
                        break
            except OSError:
                time.sleep(0.02)
        yield url, time.perf_counter() - start
    finally:
        process.terminate()
        process.wait(timeout=30)


def served_name(url: str) -> str:
    """Return the name under which the server offers its model."""
    with urllib.request.urlopen(f"{url}/v1/models", timeout=10) as reply:
        return json.load(reply)["data"][0]["id"]


def chat(
    url: str, messages: list[dict], max_tokens: int, *, ignore_eos: bool = False
) -> tuple[float, str, dict]:
    """Stream one chat answer; return (seconds to the first text, text, usage)."""
    body = {
        "model": served_name(url),
        "messages": messages,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    start, first, text, usage = time.perf_counter(), 0.0, "", {}
    with urllib.request.urlopen(request, timeout=300) as reply:
        for line in reply:
            if not line.startswith(b"data: {"):
                continue
            chunk = json.loads(line[6:])
            usage = chunk.get("usage") or usage
            for choice in chunk["choices"]:
                piece = choice["delta"].get("content") or ""
                if piece and not first:
                    first = time.perf_counter() - start
                text += piece
    if not first:
        raise RuntimeError("an answer without text: no time to its first token; the run is void")
    return first, text, usage


def conversation(url: str, run: int) -> tuple[float, float, int, int]:
    """Two turns on about 1,800 tokens; (TTFT 1, TTFT 2, cached tokens of turn 2, shared prefix)."""
    rng = random.Random(run)
    story = " ".join(rng.choice(WORDS) for _ in range(1730))
    messages = [
        {
            "role": "user",
            "content": f"{run}. {story}. What is the capital of France? Answer in one sentence.",
        }
    ]
    first, answer, usage = chat(url, messages, 32)
    shared = usage["prompt_tokens"] + usage["completion_tokens"] - 1
    messages += [
        {"role": "assistant", "content": answer},
        {"role": "user", "content": "And now one word only."},
    ]
    second, _, usage = chat(url, messages, 8)
    return first, second, usage["prompt_tokens_details"]["cached_tokens"], shared


def metric(url: str, name: str) -> float:
    """Read one sample of /metrics."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=10) as reply:
        for line in reply.read().decode().splitlines():
            if line.startswith(name) and not line.startswith("#"):
                return float(line.split()[-1])
    raise RuntimeError(f"/metrics has no {name}")


def measure_server(model: Path) -> list[Row]:
    """Measure start-up, the second turn and the engine's own time per step."""
    starts = []
    for _ in range(6):
        with server(model) as (_, seconds):
            starts.append(seconds)
    with server(model) as (url, _):
        turns = [conversation(url, run) for run in range(3)]
        # Many steps in a row: the median is then over steps of one running stream.
        chat(url, [{"role": "user", "content": "Tell me a story."}], 600, ignore_eos=True)
        time.sleep(1.5)
        overhead = metric(url, "tokenspeed_overhead_us_p50")
    first, second = (statistics.median(turn[i] for turn in turns) for i in (0, 1))
    worst = max(abs(cached - shared) for _, _, cached, shared in turns)
    make = partial(Row, group="serving", command=COMMAND)
    return [
        make(
            name="second start until /health answers (median of 5)",
            value=round(statistics.median(starts[1:]), 2),
            unit="s",
            better="lower",
            target="<= 6 s",
        ),
        make(
            name="second turn on an 1,800-token conversation, TTFT",
            value=round(second * 1e3, 1),
            unit="ms",
            better="lower",
            peer="first turn, ms",
            peer_value=round(first * 1e3, 1),
            ratio=round(first / second, 2),
            target=">= 20x",
        ),
        make(
            name="second turn: cached tokens short of the shared prefix, worst of 3",
            value=worst,
            unit="tokens",
            better="lower",
            target="<= 1",
        ),
        make(
            name="engine overhead per step at batch 1 (control + event loop), median",
            value=round(overhead, 1),
            unit="us",
            better="lower",
            target="<= 300 us",
        ),
    ]
