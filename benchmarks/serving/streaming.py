"""The front end's speed: streamed chunks per core, latency it adds, its loop while 1M tokens come.

A real API process between a played engine and raw sockets, both in this process. Chunks per core
are CPU seconds of the API process, so other load on the machine does not change them; latency and
lag are wall time and need a quiet machine. Usage: python -m benchmarks.serving.streaming
[--model MODEL] [--only chunks,latency,admission] [--cases NAME,...] [--keep]
"""

from __future__ import annotations

import argparse
import json
import random
import socket
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from benchmarks.results_file import Row, merge_rows
from benchmarks.serving.played_engine import MAX_CONTEXT_TOKENS, served
from benchmarks.serving.stream_client import Streams, request_bytes
from tests.support.dialogue import HERMES_TEMPLATE
from tests.support.scripted import write_scripted_model

from tokenspeed.engine.messages import ModelInfo
from tokenspeed.tokenizer import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.serving.played_engine import ApiProcess, PlayedEngine

COMMAND = "python -m benchmarks.serving.streaming --keep"
NUM_STREAMS = 64
TARGET_CHUNKS_S = 3000
WARM_STEPS, STEPS, ROUNDS = 40, 50, 5
QUIET_S = 0.02
TICK_S = 0.001
NUM_TOKENS = 1_000_000
WORDS = ["river", "stone", "cloud", "engine", "paper", "green", "seven", "window", "market"]
PARSED = {"tool_parser": "hermes", "reasoning_parser": "think"}
CALL = '<tool_call>\n{"name": "note", "arguments": {"text": "%s"}}\n</tool_call>'
SCRIPTS = {
    "text": " ".join(WORDS * 20),
    "call": CALL % " ".join(WORDS * 400),
    "thought": f"<think>{' '.join(WORDS * 400)}</think>",
}


@dataclass(frozen=True, slots=True)
class Case:
    """Streams that are alike.

    Args:
        body: of each request, beside model, prompt and length.
        script: of SCRIPTS, what they say.
        settings: of the server.
    """

    name: str
    path: str
    body: dict[str, Any] = field(default_factory=dict)
    script: str = "text"
    settings: dict[str, Any] = field(default_factory=dict)


CHAT, PLAIN = "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
_PARAMETERS = {"type": "object", "properties": {"text": {"type": "string"}}}
_FUNCTION = {"name": "note", "description": "Keep a note.", "parameters": _PARAMETERS}
CHAT_TOOLS = {"tools": [{"type": "function", "function": _FUNCTION}]}
TOOLS = {"tools": [{"type": "function", **_FUNCTION}]}
MESSAGES_TOOLS = {"tools": [{"name": "note", "input_schema": _PARAMETERS}]}
CASES = (
    Case("chat", CHAT),
    Case("chat, reasoning", CHAT, {}, "thought", PARSED),
    Case("chat, a tool's arguments", CHAT, CHAT_TOOLS, "call", PARSED),
    Case("chat, 5 logprobs", CHAT, {"logprobs": True, "top_logprobs": 5}),
    Case("completions", PLAIN),
    Case("completions, 5 logprobs", PLAIN, {"logprobs": 5}),
    Case("messages", MESSAGES),
    Case("messages, a tool's arguments", MESSAGES, MESSAGES_TOOLS, "call", PARSED),
    Case("responses", RESPONSES),
    Case("responses, a tool's arguments", RESPONSES, TOOLS, "call", PARSED),
)
PROMPT_FIELDS = {
    CHAT: lambda text: {"messages": [{"role": "user", "content": text}], "max_tokens": 100_000},
    PLAIN: lambda text: {"prompt": text, "max_tokens": 100_000},
    MESSAGES: lambda text: {
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 100_000,
    },
    RESPONSES: lambda text: {"input": text, "max_output_tokens": 100_000},
}


class Bench:
    """One API process with its streams at work."""

    def __init__(self, engine: PlayedEngine, process: ApiProcess) -> None:
        self.engine = engine
        self.process = process

    @contextmanager
    def streams(self, case: Case, number: int = NUM_STREAMS) -> Iterator[Streams]:
        """Open streams and take their first events; end them afterwards."""
        body = {
            "model": "m",
            "stream": True,
            **PROMPT_FIELDS[case.path]("Say something."),
            **case.body,
        }
        streams = Streams(self.process.port, case.path, body, number)
        while self.engine.num_running < number:
            self.engine.receive(wait_ms=10)
            streams.read(0)  # a refusal is raised
        try:
            yield streams
        finally:
            streams.close()
            while self.engine.num_running:
                self.engine.receive(wait_ms=10)

    def warm_up(self, streams: Streams) -> None:
        """Take what opens the answers: parsers keep some of it back."""
        for _ in range(WARM_STEPS):
            self.engine.step()
            while streams.read(QUIET_S):
                pass

    def step(self, streams: Streams) -> list[float]:
        """Run a step and wait for all of its chunks; return the seconds that each took."""
        self.engine.receive()
        published_s = self.engine.step()
        return [at - published_s for at in streams.wait_all().values()]

    def chunks_per_cpu_s(self, streams: Streams) -> tuple[float, float]:
        """Return chunks a CPU second of the process, and writes a chunk."""
        before_s, reads = self.process.cpu_s(), streams.num_reads
        for _ in range(STEPS):
            self.step(streams)
        chunks = STEPS * NUM_STREAMS
        return chunks / (self.process.cpu_s() - before_s), (streams.num_reads - reads) / chunks

    def latencies(self, streams: Streams, seconds: float) -> list[float]:
        """Return the added seconds of each chunk at the target's rate."""
        pause_s = NUM_STREAMS / TARGET_CHUNKS_S
        found: list[float] = []
        next_s = time.monotonic()
        for _ in range(int(seconds / pause_s)):
            time.sleep(max(0.0, next_s - time.monotonic()))
            next_s = max(next_s + pause_s, time.monotonic())
            found += self.step(streams)
        return found

    def admission(self, path: str, body: bytes) -> tuple[float, float, float]:
        """Send a request while a stream ticks each millisecond.

        Returns:
            The longest tick (s), CPU seconds of the process, and seconds to its Submit.
        """
        case = Case("ticker", PLAIN)
        with self.streams(case, 1) as ticker, _sent(self.process.port, path, body):
            started_s, cpu_s = time.monotonic(), self.process.cpu_s()
            longest_s = 0.0
            while self.engine.num_running < 2:
                longest_s = max(longest_s, *self.step(ticker))
                time.sleep(TICK_S)
            return longest_s, self.process.cpu_s() - cpu_s, time.monotonic() - started_s


@contextmanager
def _sent(port: int, path: str, body: bytes) -> Iterator[None]:
    """Send a request from a thread of its own."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        data = request_bytes(path, body)
        thread = threading.Thread(target=connection.sendall, args=(data,))
        thread.start()
        yield
        thread.join()


def write_model(source: str, folder: Path) -> ModelInfo:
    """Write a model of a tokenizer and a template with tools; return what its engine says of it."""
    path = write_scripted_model(folder / "m", tokenizer=load_tokenizer(source).backend)
    texts = {"eos_token": "<|im_end|>", "chat_template": HERMES_TEMPLATE}
    (path / "tokenizer_config.json").write_text(json.dumps(texts), encoding="utf-8")
    tokenizer = load_tokenizer(str(path))
    return ModelInfo(
        name="m",
        path=str(path),
        architecture="played",
        vocab_size=tokenizer.vocab_size,
        max_context_tokens=MAX_CONTEXT_TOKENS,
        max_prompt_tokens=MAX_CONTEXT_TOKENS - 1,
        eos_token_ids=tokenizer.eos_token_ids,
    )


@contextmanager
def bench(model: ModelInfo, script: str, settings: dict[str, Any]) -> Iterator[Bench]:
    """Start a server whose engine says `script`."""
    ids = load_tokenizer(model.path).encode(SCRIPTS[script], add_special_tokens=False)
    with served(model, ids, **settings) as (engine, process):
        yield Bench(engine, process)


def row(name: str, value: float, unit: str, better: str, target: str = "") -> Row:
    """Return a result row of this benchmark."""
    return Row(
        group="front end",
        name=name,
        value=round(value, 2),
        unit=unit,
        better=better,
        target=target,
        command=COMMAND,
    )


def chunk_rows(model: ModelInfo, cases: list[Case]) -> list[Row]:
    """Chunks per CPU second of each case."""
    rows = []
    for case in cases:
        with bench(model, case.script, case.settings) as one, one.streams(case) as streams:
            one.warm_up(streams)
            rates, writes = zip(
                *(one.chunks_per_cpu_s(streams) for _ in range(ROUNDS)), strict=True
            )
        name = f"{case.name}: streamed chunks of {NUM_STREAMS} streams"
        rows.append(row(name, median(rates), "chunks/CPU s", "higher", ">= 3,000"))
        print(f"{name}: {median(rates):,.0f} /CPU s, {1e6 / median(rates):.0f} us each, "
              f"{max(writes):.2f} writes a chunk", flush=True)  # fmt: skip
    return rows


def latency_rows(model: ModelInfo, cases: list[Case], seconds: float) -> list[Row]:
    """Added latency at 3,000 chunks/s."""
    rows = []
    for case in cases:
        with bench(model, case.script, case.settings) as one, one.streams(case) as streams:
            one.warm_up(streams)
            found = one.latencies(streams, seconds)
        p99_ms = quantiles(found, n=100)[98] * 1e3
        name = f"{case.name}: p99 added latency at {TARGET_CHUNKS_S:,} chunks/s"
        rows.append(row(name, p99_ms, "ms", "lower", "< 5 ms"))
        print(f"{name}: {p99_ms:.2f} ms (median {median(found) * 1e3:.2f})", flush=True)
    return rows


def admissions(model: ModelInfo, num_tokens: int = NUM_TOKENS) -> Iterator[tuple[str, str, bytes]]:
    """Yield (name, path, body) of requests of about so many tokens."""
    chooser = random.Random(7)
    text = " ".join(chooser.choices(WORDS, k=num_tokens))
    turns = [text[start : start + 20_000] for start in range(0, len(text), 20_000)]
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": part} for i, part in enumerate(turns)]
    ids = [chooser.randrange(100, model.vocab_size) for _ in range(num_tokens)]
    one = {"model": "m", "max_tokens": 8, "stream": True}
    yield "chat of many turns", CHAT, json.dumps({**one, "messages": messages}).encode()
    yield "messages of many turns", MESSAGES, json.dumps({**one, "messages": messages}).encode()
    for name, prompt in (("text", text), ("token ids", ids)):
        yield f"completions of {name}", PLAIN, json.dumps({**one, "prompt": prompt}).encode()


def admission_rows(model: ModelInfo) -> list[Row]:
    """The loop's longest pause while a request of a million tokens is admitted."""
    rows = []
    for name, path, body in admissions(model):
        # A fresh process each: what it has encoded before would cost nothing.
        with bench(model, "text", {}) as one:
            lag_s, cpu_s, wall_s = one.admission(path, body)
        label = f"{name}, {NUM_TOKENS:,} tokens: loop lag while it is admitted"
        rows.append(row(label, lag_s * 1e3, "ms", "lower", "< 10 ms"))
        print(f"{label}: {lag_s * 1e3:.1f} ms; {cpu_s:.2f} CPU s, {wall_s:.2f} s, "
              f"{len(body) / 1e6:.1f} MB", flush=True)  # fmt: skip
    return rows


def main() -> None:
    """Print and keep what was chosen."""
    from tokenspeed.checkpoint.default_model import default_model_path

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="")
    parser.add_argument("--only", default="chunks,latency,admission")
    parser.add_argument("--cases", default="", help="names of cases, separated by ;")
    parser.add_argument("--seconds", type=float, default=5.0, help="of each latency run")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results")
    options = parser.parse_args()
    chosen = [case for case in CASES if not options.cases or case.name in options.cases.split(";")]
    parts = options.only.split(",")
    with TemporaryDirectory() as folder:
        model = write_model(options.model or str(default_model_path()), Path(folder))
        rows = chunk_rows(model, chosen) if "chunks" in parts else []
        rows += latency_rows(model, chosen, options.seconds) if "latency" in parts else []
        rows += admission_rows(model) if "admission" in parts else []
    if options.keep:
        print(f"written to {merge_rows(rows, {})}")


if __name__ == "__main__":
    main()
