"""What a front end does when the engine changes, message by message: the test plays the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from tokenspeed import SamplingParams
from tokenspeed.engine.channel import ServerChannel
from tokenspeed.engine.frontend import Frontend
from tokenspeed.engine.messages import (
    WIRE_VERSION,
    Abort,
    Delta,
    FromEngine,
    Hello,
    ModelInfo,
    Refused,
    Submit,
    ToEngine,
    TokensOut,
    Unhealthy,
    Welcome,
)
from tokenspeed.engine.streams import Stream
from tokenspeed.errors import EngineAwayError, EngineError

MODEL = ModelInfo(
    name="m",
    path="/m",
    architecture="A",
    vocab_size=100,
    max_context_tokens=64,
    max_prompt_tokens=63,
    eos_token_ids=(99,),
)
Result = TypeVar("Result")


class PlayedEngine:
    """The engine's end of the socket in the test's hands."""

    def __init__(self, channel: ServerChannel) -> None:
        self._channel = channel
        self._client = b""
        self._inbox: list[ToEngine] = []

    async def next(self, kind: type = Submit) -> ToEngine:
        """Return the next message of a kind."""
        for _ in range(2000):
            for client, message in self._channel.receive(0):
                self._client = client
                self._inbox.append(message)
            while self._inbox:
                message = self._inbox.pop(0)
                if isinstance(message, kind):
                    return message
            await asyncio.sleep(0.005)
        raise AssertionError(f"no {kind} came")

    def send(self, message: FromEngine) -> None:
        """Send to the one client."""
        assert self._channel.send(self._client, message)

    def welcome(self, epoch: int, **suspects: int) -> None:
        """Say that an engine of this epoch is ready."""
        self.send(
            Welcome(
                wire_version=WIRE_VERSION,
                epoch=epoch,
                model=MODEL,
                suspects=tuple(suspects),
                suspect_positions=tuple(suspects.values()),
            )
        )

    def deliver(self, request_id: str, *tokens: int, epoch: int, reason: str | None = None) -> None:
        """Send tokens of one request."""
        delta = Delta(request_id=request_id, tokens=tokens, finish_reason=reason)
        self.send(TokensOut((delta,), epoch))


def played(folder: Path, scenario: Callable[[PlayedEngine, Frontend], Awaitable[Result]]) -> Result:
    """Run a scenario with a welcomed front end."""

    async def run() -> Result:
        address = f"ipc://{folder}/engine.sock"
        channel = ServerChannel(address)
        engine = PlayedEngine(channel)
        try:
            connecting = asyncio.create_task(Frontend.connect(address, timeout_s=60))
            await engine.next(Hello)
            engine.welcome(1)
            frontend = await connecting
            try:
                return await scenario(engine, frontend)
            finally:
                await frontend.close()
        finally:
            channel.close()

    return asyncio.run(run())


def submit(frontend: Frontend, request_id: str) -> Stream:
    """Submit a small request."""
    return frontend.submit([1, 2], SamplingParams(seed=1), request_id=request_id)


def outputs_of(message: ToEngine) -> tuple[str, int, list[int]]:
    """Id, epoch and delivered tokens of a Submit."""
    assert isinstance(message, Submit)
    return message.request_id, message.epoch, np.frombuffer(message.output_ids, "<i4").tolist()


def test_what_a_dead_engine_left_in_the_socket_is_dropped(tmp_path: Path) -> None:
    async def scenario(engine: PlayedEngine, frontend: Frontend) -> list[int]:
        stream = submit(frontend, "r")
        await engine.next()
        engine.deliver("r", 5, epoch=1)
        await anext(stream)
        engine.welcome(2)
        engine.deliver("r", 6, epoch=1)
        engine.send(Refused(request_id="r", epoch=1, kind="EngineError", message="stale"))
        assert outputs_of(await engine.next()) == ("r", 2, [5])
        engine.deliver("r", 7, epoch=2, reason="length")
        return [token for delta in [d async for d in stream] for token in delta.tokens]

    assert played(tmp_path, scenario) == [7]


def test_suspects_are_sent_last_and_the_second_suspicion_ends_them(tmp_path: Path) -> None:
    async def scenario(engine: PlayedEngine, frontend: Frontend) -> list[str]:
        streams = {name: submit(frontend, name) for name in ("bad", "good", "new")}
        for _ in streams:
            await engine.next()
        engine.welcome(2, bad=-1, good=-1)
        order = [outputs_of(await engine.next())[0] for _ in streams]
        engine.deliver("good", 4, epoch=2)
        await anext(streams["good"])
        engine.welcome(3, bad=-1, good=1)
        again = [outputs_of(await engine.next())[0] for _ in range(2)]
        with pytest.raises(EngineError, match="two crashes"):
            await anext(streams["bad"])
        return order + again

    assert played(tmp_path, scenario) == ["new", "bad", "good", "new", "good"]


def test_a_resumed_request_outlasts_a_full_queue_and_a_new_one_does_not(tmp_path: Path) -> None:
    async def scenario(engine: PlayedEngine, frontend: Frontend) -> tuple[str, int, list[int]]:
        stream = submit(frontend, "r")
        await engine.next()
        engine.welcome(2)
        await engine.next()
        engine.send(
            Refused(request_id="r", epoch=2, kind="CapacityError", message="full", retry_after_s=0)
        )
        again = outputs_of(await engine.next())
        assert not stream.is_done
        return again

    assert played(tmp_path, scenario) == ("r", 2, [])


def test_a_request_submitted_while_the_engine_is_down_goes_to_the_next(tmp_path: Path) -> None:
    async def scenario(engine: PlayedEngine, frontend: Frontend) -> list[tuple[str, int]]:
        submit(frontend, "early")
        first = outputs_of(await engine.next())[:2]
        engine.welcome(2)
        return [first, outputs_of(await engine.next())[:2]]

    assert played(tmp_path, scenario) == [("early", 1), ("early", 2)]


def test_closing_a_stream_tells_the_engine(tmp_path: Path) -> None:
    async def scenario(engine: PlayedEngine, frontend: Frontend) -> ToEngine:
        await submit(frontend, "r").aclose()
        return await engine.next(Abort)

    assert played(tmp_path, scenario) == Abort("r")


def test_an_engine_that_is_given_up_ends_streams_and_refuses_new_ones(tmp_path: Path) -> None:
    async def scenario(engine: PlayedEngine, frontend: Frontend) -> None:
        stream = submit(frontend, "r")
        await engine.next()
        engine.send(Unhealthy("given up"))
        with pytest.raises(EngineError, match="given up"):
            await anext(stream)
        with pytest.raises(EngineError, match="given up"):
            submit(frontend, "s")

    played(tmp_path, scenario)


def test_an_engine_that_takes_nothing_is_sent_no_more_than_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenspeed.engine.frontend.MAX_UNTAKEN_BYTES", 2000)

    async def scenario(engine: PlayedEngine, frontend: Frontend) -> int:
        await engine.next()

        def fill() -> None:
            for index in range(1000):
                submit(frontend, f"r{index}")

        with pytest.raises(EngineAwayError, match=r"bytes of requests wait for it, at most 2000"):
            fill()
        engine.deliver("r0", 5, epoch=1)
        while frontend._socket.untaken_bytes > 2000:
            await asyncio.sleep(0.005)
        submit(frontend, "again")
        return frontend.live_requests

    async def with_first(engine: PlayedEngine, frontend: Frontend) -> int:
        submit(frontend, "first")
        return await scenario(engine, frontend)

    assert 5 < played(tmp_path, with_first) < 100
