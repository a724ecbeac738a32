"""Host memory of a server's processes against the number of requests that it has answered.

Usage: python -m benchmarks.serving.memory_slope [--requests 200000] [--workers 24] [--dry]
A scripted model without weights behind a real `tokenspeed serve`; every request is new to it: other
prompts, tenants, sessions, salts, tools and schemas, over all three APIs, streamed or not, some
refused, some given up by their client. The budgets of the caches are small, so that they are full
after the warm-up. Prints the slope of a straight line through the resident memory of each process.
The allocator keeps what was freed and gives it back late: a slope below a few hundred bytes is
noise, in either direction.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))  # for tests.support

from benchmarks.results_file import Row, merge_rows
from tests.support.dialogue import HERMES_TEMPLATE
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

COMMAND = "python -m benchmarks.serving.memory_slope"
SCRIPT = "Hello world."
WARM_SHARE = 0.3
SAMPLES = 100
FLAGS = (
    "--max-running", "32", "--max-waiting", "256", "--max-context-tokens", "2048",
    "--kv-gib", "0.02", "--turn-memory-mib", "2", "--prompt-cache-mib", "2",
    "--grammar-cache-mib", "2", "--response-store-mib", "2", "--tool-parser", "hermes",
)  # fmt: skip
KINDS = ("chat", "stream", "gone", "refused", "responses", "schema", "tools", "messages", "plain")
TARGET = "< 1 KB a request"


@dataclass(slots=True)
class Memory:
    """Resident bytes of one process by the number of requests answered."""

    name: str
    pid: int
    requests: list[int] = field(default_factory=list)
    resident: list[int] = field(default_factory=list)

    def sample(self, num_requests: int) -> None:
        """Look once."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                self.requests.append(num_requests)
                self.resident.append(int(line.split()[1]) << 10)

    def slope(self, warm_share: float = WARM_SHARE) -> float:
        """Return bytes a request, by least squares, after the warm-up."""
        first = int(len(self.requests) * warm_share)
        x = np.array(self.requests[first:], dtype=np.float64)
        y = np.array(self.resident[first:], dtype=np.float64)
        return float(np.polyfit(x, y, 1)[0])


def request_of(index: int) -> tuple[str, str, dict[str, Any], dict[str, str]]:
    """Return kind, path, body and headers of a request that no other is like."""
    kind = KINDS[index % len(KINDS)]
    headers = {"X-Tenant": f"tenant-{index % 1999}", "x-session-id": f"session-{index // 3}"}
    said = f"Question {index} of session {index // 3}: what is {index * 7919 % 104729}?"
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": said}]
    chat: dict[str, Any] = {
        "model": "model", "messages": messages, "max_tokens": 16, "temperature": 0,
        "prompt_cache_key": f"key-{index // 3}",
    }  # fmt: skip
    if kind == "refused":
        return kind, "/v1/chat/completions", {**chat, "temperature": -1 - index}, headers
    if kind in ("stream", "gone"):
        return kind, "/v1/chat/completions", {**chat, "stream": True}, headers
    if kind == "schema":
        schema = {"type": "object", "properties": {f"p{index}": {"type": "integer"}}}
        form = {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}
        return kind, "/v1/chat/completions", {**chat, "response_format": form}, headers
    if kind == "tools":
        parameters = {"type": "object", "properties": {f"a{index}": {"type": "string"}}}
        function = {"name": f"tool_{index}", "parameters": parameters}
        tools = [{"type": "function", "function": function}]
        return kind, "/v1/chat/completions", {**chat, "tools": tools, "stream": True}, headers
    if kind == "responses":
        body = {"model": "model", "input": said, "max_output_tokens": 16}
        return kind, "/v1/responses", body, headers
    if kind == "messages":
        body = {"model": "model", "messages": messages[1:], "max_tokens": 16}
        return kind, "/v1/messages", {**body, "stream": index % 2 == 0}, headers
    if kind == "plain":
        body = {"model": "model", "prompt": said, "max_tokens": 16, "logprobs": 2}
        return kind, "/v1/completions", {**body, "cache_salt": f"salt-{index}"}, headers
    return kind, "/v1/chat/completions", chat, headers


async def ask(address: tuple[str, int], index: int) -> int:
    """Send one request and read its answer, or leave in the middle of it; return the status."""
    kind, path, body, headers = request_of(index)
    data = json.dumps(body).encode()
    head = [f"POST {path} HTTP/1.1", "Host: x", "Connection: close", f"Content-Length: {len(data)}"]
    head += [f"{name}: {value}" for name, value in headers.items()]
    reader, writer = await asyncio.open_connection(*address)
    try:
        writer.write(("\r\n".join(head) + "\r\n\r\n").encode() + data)
        answer = await (reader.read(300) if kind == "gone" else reader.read(-1))
        return int(answer[9:12])
    finally:
        writer.close()


async def drive(
    address: tuple[str, int], num_requests: int, num_workers: int, memories: list[Memory]
) -> dict[int, int]:
    """Send all requests, several at once; sample the memories on the way; return the statuses."""
    numbers: Iterator[int] = iter(range(num_requests))
    statuses: dict[int, int] = {}
    every = max(1, num_requests // SAMPLES)

    async def work() -> None:
        for index in numbers:
            status = await ask(address, index)
            statuses[status] = statuses.get(status, 0) + 1
            if index % every == 0:
                for memory in memories:
                    memory.sample(index)

    await asyncio.gather(*(work() for _ in range(num_workers)))
    return statuses


def process_of(server: ServerProcess, words: bytes, name: str) -> Memory:
    """Return the child whose command line holds `words`."""
    pids = server.children()
    found = [pid for pid in pids if words in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return Memory(name, found[0])


def write_model(folder: Path) -> Path:
    """Write a model that says SCRIPT, with a chat template that knows tools."""
    model = write_scripted_model(folder / "model", script=SCRIPT, max_position_embeddings=2048)
    told = {"eos_token": "<|im_end|>", "chat_template": HERMES_TEMPLATE}
    (model / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    return model


def measure(
    folder: Path, num_requests: int, num_workers: int
) -> tuple[list[Memory], dict[int, int]]:
    """Serve and drive; return the memory of the API process and of the engine."""
    with ServerProcess(write_model(folder), folder, *FLAGS) as server:
        memories = [
            process_of(server, b"api_process", "API process"),
            process_of(server, b"engine.process", "engine process"),
        ]
        host, port = server.url.removeprefix("http://").split(":")
        statuses = asyncio.run(drive((host, int(port)), num_requests, num_workers, memories))
    return memories, statuses


def main() -> None:
    """Measure and merge the rows into this machine's results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=200_000)
    parser.add_argument("--workers", type=int, default=24)
    parser.add_argument("--dry", action="store_true", help="print only")
    args = parser.parse_args()
    started_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ts-slope-") as folder:
        memories, statuses = measure(Path(folder), args.requests, args.workers)
    took_s = time.monotonic() - started_s
    print(f"{args.requests} requests in {took_s:.0f} s: {dict(sorted(statuses.items()))}")
    rows = []
    for memory in memories:
        first, last = memory.resident[0] / 2**20, memory.resident[-1] / 2**20
        print(f"{memory.name}: {first:.1f} to {last:.1f} MiB, {memory.slope():.0f} bytes a request")
        print("  MiB: " + " ".join(f"{item / 2**20:.1f}" for item in memory.resident[::5]))
        rows.append(
            Row(
                group="host memory",
                name=f"{memory.name}, slope over {args.requests:,} requests after the warm-up",
                value=round(memory.slope(), 1),
                unit="bytes a request",
                better="lower",
                target=TARGET,
                command=COMMAND,
            )
        )
    if not args.dry:
        merge_rows(rows, {})


if __name__ == "__main__":
    main()
