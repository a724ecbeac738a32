"""Clients that go away, slow clients, and streams that stay open while nothing comes."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

if TYPE_CHECKING:
    from tests.support.server import ServerProcess

SEED = 20261129
KEEP_ALIVE_S = 0.2
"""What `hash_server` is started with."""


def send(server: ServerProcess, body: dict[str, Any]) -> socket.socket:
    """Send a completion request on a fresh connection."""
    parts = urlsplit(server.url)
    connection = socket.create_connection((parts.hostname, parts.port), timeout=60)
    payload = json.dumps({"model": "hashed", "temperature": 0, **body}).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(payload)}\r\n\r\n"
    connection.sendall(head.encode() + payload)
    return connection


def answer_of(server: ServerProcess, prompt: str, max_tokens: int = 16) -> dict[str, Any]:
    body = {"model": "hashed", "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    answer: dict[str, Any] = server.call("/v1/completions", body).json()
    return answer


def test_200_random_disconnects_leave_no_block_and_the_next_answer_unchanged(
    hash_server: ServerProcess,
) -> None:
    print(f"seed {SEED}")
    chooser = random.Random(SEED)
    before = answer_of(hash_server, "steady")["choices"]

    def one(delay_s: float, body: dict[str, Any], reads: int) -> None:
        with send(hash_server, body) as connection, contextlib.suppress(OSError):
            connection.settimeout(delay_s)
            for _ in range(reads):
                connection.recv(200)

    jobs = [
        (
            chooser.choice((0.001, 0.02, 0.1)),
            {
                "prompt": f"{index % 7} " * chooser.randint(1, 60),
                "max_tokens": 400,
                "stream": chooser.random() < 0.7,
                "n": chooser.choice((1, 1, 2)),
            },
            chooser.randint(0, 4),
        )
        for index in range(200)
    ]
    with ThreadPoolExecutor(12) as pool:
        list(pool.map(lambda job: one(*job), jobs))
    hash_server.wait_metric("tokenspeed_blocks_used", 0)
    hash_server.wait_metric("tokenspeed_running", 0)
    assert answer_of(hash_server, "steady")["choices"] == before


@pytest.mark.parametrize("percent", [30, 60, 90])
def test_a_prefill_cut_off_keeps_its_finished_chunks(
    hash_server: ServerProcess, percent: int
) -> None:
    # 1,600 tokens in chunks of 64 take 25 steps of 8.4 ms, 0.21 s.
    for attempt in range(5):  # a busy server may not have begun by then
        prompt = f"{percent}{attempt}" + "p" * 1597
        with send(hash_server, {"prompt": prompt, "max_tokens": 1, "stream": True}):
            time.sleep(0.21 * percent / 100)
        again = answer_of(hash_server, prompt)
        cached = again["usage"]["prompt_tokens_details"]["cached_tokens"]
        if cached:
            break
    assert 64 <= cached <= 1599
    other = {"model": "hashed", "prompt": prompt, "max_tokens": 16, "temperature": 0}
    undisturbed = hash_server.call("/v1/completions", {**other, "cache_salt": "none"}).json()
    assert undisturbed["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert again["choices"] == undisturbed["choices"]


def test_comment_lines_keep_a_stream_open_from_before_prefill_on(
    hash_server: ServerProcess,
) -> None:
    busy = [send(hash_server, {"prompt": f"{i}" + "b" * 1500, "max_tokens": 200}) for i in range(6)]
    sent_s = time.monotonic()
    with send(hash_server, {"prompt": "late" * 300, "max_tokens": 2, "stream": True}) as late:
        text, first_data_s = b"", 0.0
        while b"[DONE]" not in text:
            text += late.recv(65536)
            if not first_data_s and b"data:" in text:
                first_data_s = time.monotonic() - sent_s
    head, _, body = text.partition(b"\r\n\r\n")
    assert b"text/event-stream" in head
    num_comments = body.split(b"data:")[0].count(b": keep-alive\n\n")
    assert first_data_s > 3 * KEEP_ALIVE_S, "the scheduler was not busy for long enough"
    assert num_comments >= first_data_s / KEEP_ALIVE_S / 2, f"{num_comments} in {first_data_s} s"
    for connection in busy:
        connection.close()
    hash_server.wait_metric("tokenspeed_blocks_used", 0)


def test_deltas_of_a_slow_reader_are_merged_and_nothing_is_lost(
    hash_server: ServerProcess,
) -> None:
    fast = answer_of(hash_server, "slow reader", 500)["choices"][0]["text"]
    body = {"prompt": "slow reader", "max_tokens": 500, "stream": True}
    with send(hash_server, body) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        text = b""
        while b"[DONE]" not in text:
            text += connection.recv(2048)
            if len(text) < 20_000:
                time.sleep(0.05)
    pieces = [line[6:] for line in text.split(b"\n") if line.startswith(b"data: {")]
    chunks = [json.loads(piece)["choices"][0]["text"] for piece in pieces]
    assert "".join(chunks) == fast
