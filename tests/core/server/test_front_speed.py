"""What keeps streams fast, counted without a clock: writes, bytes, and CPU of the event loop."""

from __future__ import annotations

import asyncio
import asyncio.events
import json
import random
import time
from functools import reduce
from operator import add
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.apps import App

from tokenspeed.contracts.parser import ToolCallDelta
from tokenspeed.contracts.sampler import TokenLogprobs
from tokenspeed.engine.messages import CacheReport
from tokenspeed.server.http.stream import event
from tokenspeed.server.openai.chunks import ChunkReply
from tokenspeed.server.piece_sum import PieceSum
from tokenspeed.server.pieces import Piece

if TYPE_CHECKING:
    from pathlib import Path

NUM_TOKENS = 200_000
MAX_CALLBACK_MS = 15.0
PATHS = ("/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions")


def body_of(path: str, text: str) -> dict[str, Any]:
    """Return a request of the API of a path."""
    if path == "/v1/completions":
        return {"model": "m", "prompt": text, "max_tokens": 8}
    if path == "/v1/responses":
        return {"model": "m", "input": text}
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 8}


async def sent(app: App, path: str, raw: bytes) -> list[bytes]:
    """Send a request; return what the application writes, write by write."""
    inbox = iter([{"type": "http.request", "body": raw, "more_body": False}])
    writes: list[bytes] = []

    async def receive() -> dict[str, Any]:
        message = next(inbox, None)
        if message is None:
            await asyncio.sleep(3600)
        return message or {}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and message["body"]:
            writes.append(message["body"])

    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": [(b"content-length", str(len(raw)).encode())],
    }
    await app.asgi(scope, receive, send)
    return writes


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_is_written_once_a_step(path: str, tmp_path: Path) -> None:
    app = App(tmp_path)
    app.engine.script, app.engine.pause_s = "abcdef", 0.002
    raw = json.dumps({**body_of(path, "x"), "stream": True}).encode()
    writes = asyncio.run(sent(app, path, raw))
    # The opening, six letters, the end of the text (a chunk of its own on two APIs), the closing.
    assert len(writes) in (8, 9), writes
    said = [write for write in writes[1:7] if write.count(b"data: ") <= 3]
    assert len(said) == 6


class PlainBodies:
    """Choices that are hard to spell, in a head that holds the mark of the frame itself."""

    def __init__(self) -> None:
        self.head = {"id": 'x"choices":[', "object": "o", "created": 1, "model": "m"}

    def choice(self, index: int, piece: Piece) -> dict[str, Any]:
        """Return the choice of a chunk."""
        return {"index": index, "delta": {"content": piece.text}, "finish_reason": None}

    def whole(self, pieces: Any) -> dict[str, Any]:
        """Not used."""
        raise NotImplementedError


@pytest.mark.parametrize("wants_usage", [False, True])
def test_chunks_have_the_bytes_of_whole_events(wants_usage: bool) -> None:
    options = type("Options", (), {"include_usage": wants_usage})
    request: Any = type("Request", (), {"stream_options": options})
    generation: Any = None
    bodies = PlainBodies()
    reply = ChunkReply(request, generation, bodies)
    taken = [(0, Piece('"choices":[')), (1, Piece("\u00e9\n\U0001f600"))]
    extra = {"usage": None} if wants_usage else {}
    plain = [event({**bodies.head, "choices": [bodies.choice(*one)], **extra}) for one in taken]
    assert reply.more(taken) == b"".join(plain)


def random_piece(chooser: random.Random, *, is_last: bool) -> Piece:
    index = chooser.randrange(3)
    score = TokenLogprobs(chooser.randrange(9), -1.0, 1)
    return Piece(
        chooser.choice(["", "a", "bc"]),
        chooser.choice(["", "r"]),
        (ToolCallDelta(index, f"id{index}", "f", "{"),) if chooser.random() < 0.3 else (),
        num_tokens=chooser.randrange(3),
        reasoning_tokens=chooser.randrange(2),
        logprobs=(score,) * chooser.randrange(3),
        prompt_logprobs=(score,) * chooser.randrange(2),
        cached_tokens=chooser.randrange(-1, 5),
        drafts=(chooser.randrange(3), chooser.randrange(2)),
        cache=CacheReport(1, 2, 3, 4, "new") if chooser.random() < 0.2 else None,
        finish_reason="stop" if is_last else None,
        stop_text="." if is_last else "",
    )


def test_a_sum_of_many_pieces_is_that_of_each_added_to_the_last() -> None:
    chooser = random.Random(3)
    for count in (0, 1, 2, 63, 64, 65, 300):
        pieces = [random_piece(chooser, is_last=i == count - 1) for i in range(count)]
        total = PieceSum()
        for piece in pieces:
            total.add(piece)
        assert total.has_ended == (count > 0)
        assert total.total() == reduce(add, pieces, Piece())
        assert total.total() == reduce(add, pieces, Piece())


@pytest.mark.parametrize("kind", [*PATHS, "ids"])
def test_the_loop_is_never_busy_for_long_while_a_long_prompt_is_admitted(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = App(tmp_path, context=NUM_TOKENS * 2, turn_memory_mib=16)
    text = "".join(random.Random(7).choices("abcdefgh    ", k=NUM_TOKENS))
    path = "/v1/completions" if kind == "ids" else kind
    body = body_of(path, text)
    if kind == "ids":
        body["prompt"] = [token % 90 for token in range(NUM_TOKENS)]
    raw = json.dumps(body).encode()
    spent_ms: list[float] = []
    run = asyncio.events.Handle._run

    def timed(handle: asyncio.events.Handle) -> None:
        start_s = time.thread_time()
        run(handle)
        spent_ms.append((time.thread_time() - start_s) * 1000)

    monkeypatch.setattr(asyncio.events.Handle, "_run", timed)
    writes = asyncio.run(sent(app, path, raw))
    assert app.engine.submits, writes
    assert len(app.engine.submits[0].prompt_ids) // 4 >= NUM_TOKENS
    assert max(spent_ms) < MAX_CALLBACK_MS, sorted(spent_ms)[-5:]
