"""One request walks the twelve rows of the table "Life of a request", each seen handing over."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import json
import shutil
import threading
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.support.scripted import write_scripted_model
from tests.support.tiny_checkpoints import make_checkpoint

import tokenspeed.engine.frontend
import tokenspeed.server.answer
import tokenspeed.server.app
from tokenspeed.config.schema import EngineConfig, ServeConfig
from tokenspeed.engine.build import build_engine
from tokenspeed.engine.channel import ServerChannel
from tokenspeed.engine.event_loop import EventLoop
from tokenspeed.engine.frontend import Frontend
from tokenspeed.engine.messages import Submit
from tokenspeed.models.llama import LlamaForCausalLM
from tokenspeed.server.api_process import make_app
from tokenspeed.server.conversation.prompts import Prompt, PromptReader
from tokenspeed.server.openai.chunks import ChunkReply
from tokenspeed.server.openai.schemas import ChatRequest
from tokenspeed.server.parsers import ChosenParsers
from tokenspeed.server.pieces import Piece, TextAssembler
from tokenspeed.tokenizer.load import load_tokenizer
from tokenspeed_reference.attention_native import NativePagedAttention
from tokenspeed_reference.sampler import PhiloxSampler

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tokenspeed.engine.engine import Engine

ROWS = (
    "1 HTTP in",
    "2 text to tokens",
    "3 submit",
    "4 one step",
    "5 schedule, 6 plan",
    "7 execute",
    "8 kernels",
    "9 sample",
    "10 commit",
    "11 tokens to text",
    "12 stream out",
)


class Journal:
    """What each row handed over, in order; wrapped functions do their work as ever."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Any]] = []

    def first_seen(self) -> list[str]:
        return list(dict.fromkeys(row for row, _ in self.entries))

    def values(self, row: str) -> list[Any]:
        return [value for name, value in self.entries if name == row]

    def wrap(self, row: str, function: Callable[..., Any], *, before: bool = False) -> Any:
        """Return `function`, noting what it returns (or, `before`, that it was entered)."""
        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def awaited(*args: Any, **options: Any) -> Any:
                result = await function(*args, **options)
                self.entries.append((row, result))
                return result

            return awaited

        @functools.wraps(function)
        def called(*args: Any, **options: Any) -> Any:
            if before:
                self.entries.append((row, args[-1]))
                return function(*args, **options)
            result = function(*args, **options)
            if result is not None:  # an idle scheduler plans nothing
                self.entries.append((row, result))
            return result

        return called


class NotedScheduler:
    """The real scheduler; plans and commits are noted."""

    def __init__(self, scheduler: Any, journal: Journal) -> None:
        self._scheduler = scheduler
        self.plan = journal.wrap("5 schedule, 6 plan", scheduler.plan)
        self.commit = journal.wrap("10 commit", scheduler.commit)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._scheduler, name)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A tiny random Llama with the byte tokenizer and a chat template."""
    folder = make_checkpoint("llama", tmp_path)
    words = write_scripted_model(tmp_path / "words")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(words / name, folder / name)
    return folder


@pytest.fixture
def journal(monkeypatch: pytest.MonkeyPatch) -> Journal:
    journal = Journal()
    places: list[tuple[str, Any, str, bool]] = [
        ("1 HTTP in", tokenspeed.server.service, "read_body", False),
        ("2 text to tokens", PromptReader, "chat", False),
        ("3 submit", tokenspeed.engine.frontend, "make_submit", False),
        ("7 execute", LlamaForCausalLM, "forward", True),
        ("8 kernels", NativePagedAttention, "attend", True),
        ("9 sample", PhiloxSampler, "sample", False),
        ("11 tokens to text", TextAssembler, "push", False),
        ("12 stream out", ChunkReply, "more", False),
    ]
    for row, owner, name, before in places:
        monkeypatch.setattr(owner, name, journal.wrap(row, getattr(owner, name), before=before))
    return journal


def test_a_request_walks_the_rows_in_order(model: Path, journal: Journal, tmp_path: Path) -> None:
    config = EngineConfig(model=str(model), plugins=("reference",), block_tokens=16, kv_gib=0.01)
    engine = build_engine(config)
    scheduler: Any = NotedScheduler(engine.scheduler, journal)
    body = asyncio.run(ask(dataclasses.replace(engine, scheduler=scheduler), journal, tmp_path))

    rows = [row for row in journal.first_seen() if row != "4 one step"]
    assert rows == [row for row in ROWS if row != "4 one step"]
    assert isinstance(journal.values("1 HTTP in")[0], ChatRequest)
    prompt = journal.values("2 text to tokens")[0]
    assert isinstance(prompt, Prompt)
    submit = journal.values("3 submit")[0]
    assert isinstance(submit, Submit)
    assert submit.prompt_ids == prompt.token_ids.tobytes()
    plans = journal.values("5 schedule, 6 plan")
    assert len(plans) == len(journal.values("9 sample")) == 5, "one prefill step, four decodes"
    assert len(journal.values("8 kernels")) == 3 * len(plans), "three layers"
    commits = journal.values("10 commit")
    tokens = [int(token) for commit in commits for token in commit.tokens]
    pieces = journal.values("11 tokens to text")
    assert all(isinstance(piece, Piece) for piece in pieces)
    assert sum(piece.num_tokens for piece in pieces) == len(tokens) == 5
    events = b"".join(journal.values("12 stream out"))
    assert events in body.replace(b": keep-alive\n\n", b"")
    assert text_of(body) == load_tokenizer(model).decode(tokens)
    assert journal.values("4 one step")


async def ask(engine: Engine, journal: Journal, folder: Path) -> bytes:
    """Serve one streamed chat completion through a real channel and application."""
    address = f"ipc://{folder}/engine"
    channel = ServerChannel(address)
    loop = EventLoop(engine, channel)
    turn = journal.wrap("4 one step", loop.turn)
    stopping = threading.Event()

    def run() -> None:
        while not stopping.is_set():
            turn(20)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        frontend = await Frontend.connect(address, timeout_s=60)
        tokenizer = load_tokenizer(engine.info.path)
        app = make_app(
            ServeConfig(),
            frontend,
            tokenizer,
            engine.report,
            parsers=ChosenParsers(),
            folder=folder,
        )
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.post("/v1/chat/completions", json=request_body(engine))
        assert answer.status_code == 200
        await frontend.close()
        return answer.content
    finally:
        stopping.set()
        thread.join()
        channel.close()


def request_body(engine: Engine) -> dict[str, Any]:
    messages = [{"role": "user", "content": "hi"}]
    rest = {"max_tokens": 5, "temperature": 0, "stream": True, "ignore_eos": True}
    return {"model": engine.info.name, "messages": messages, **rest}


def text_of(body: bytes) -> str:
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
    deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
    return "".join(delta.get("content", "") for delta in deltas)
