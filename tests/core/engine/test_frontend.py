"""The front end against a real engine process: order, abort, stop, refusal, epochs."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import zmq
from tests.support.engines import RunningEngine, deltas_of, stats_when, tokens_of
from tests.support.scripted import write_scripted_model

from tokenspeed import LLM, SamplingParams
from tokenspeed.engine.frontend import Frontend
from tokenspeed.engine.messages import EngineStats, FromEngine, Hello, Terms, TokensOut, Welcome
from tokenspeed.engine.submits import make_submit
from tokenspeed.errors import CapacityError, EngineError, RequestError

MAX_WAITING = 24


def greedy(max_tokens: int = 24) -> SamplingParams:
    """Greedy parameters."""
    return SamplingParams(temperature=0.0, max_tokens=max_tokens)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    model = write_scripted_model(tmp_path_factory.mktemp("frontend") / "model", step_ms=1)
    with RunningEngine(model, max_waiting=MAX_WAITING) as engine:
        yield engine


def is_idle(stats: EngineStats) -> bool:
    return stats.blocks_used == 0 and stats.running == 0 and stats.waiting == 0


def test_streams_are_in_order_and_equal_to_the_offline_engine(engine: RunningEngine) -> None:
    prompts = [[index, index + 1, 5] * (index + 1) for index in range(12)]

    async def scenario(frontend: Frontend) -> list[list[int]]:
        streams = [frontend.submit(prompt, greedy()) for prompt in prompts]
        return await asyncio.gather(*map(tokens_of, streams))

    streamed = engine.run(scenario)
    model = engine.run(lambda frontend: asyncio.sleep(0, frontend.model.path))
    with LLM(model, plugins="sdk", block_tokens=16, kv_gib=0.001, threads=1) as llm:
        assert streamed == [list(out.token_ids) for out in llm.generate(prompts, greedy())]


def test_the_last_delta_says_why_and_the_first_how_much_was_cached(engine: RunningEngine) -> None:
    async def scenario(frontend: Frontend) -> tuple[str | None, int]:
        await deltas_of(frontend.submit([9] * 40, greedy(4)))
        deltas = await deltas_of(frontend.submit([9] * 40, greedy(4)))
        return deltas[-1].finish_reason, deltas[0].cached_tokens

    assert engine.run(scenario) == ("length", 39)


def test_an_abort_frees_the_blocks(engine: RunningEngine) -> None:
    async def scenario(frontend: Frontend) -> EngineStats:
        stream = frontend.submit([1, 2, 3], greedy(2000))
        await anext(stream)
        frontend.abort(stream.request_id)
        remaining = await deltas_of(stream)
        assert all(delta.finish_reason is None for delta in remaining)
        return await stats_when(frontend, is_idle, timeout_s=60)

    assert is_idle(engine.run(scenario))


def test_a_stopped_request_stays_matchable(engine: RunningEngine) -> None:
    async def scenario(frontend: Frontend) -> int:
        prompt = [17, 23] * 30
        stream = frontend.submit(prompt, greedy(2000))
        await anext(stream)
        frontend.stop(stream.request_id)
        (delta,) = await deltas_of(frontend.submit(prompt, greedy(1)))
        return delta.cached_tokens

    assert engine.run(scenario) >= 58


def test_a_deadline_ends_the_stream_with_timeout(engine: RunningEngine) -> None:
    async def scenario(frontend: Frontend) -> str | None:
        deltas = await deltas_of(frontend.submit([4], greedy(3000), terms=Terms(timeout_s=0.3)))
        return deltas[-1].finish_reason

    assert engine.run(scenario) == "timeout"


def test_a_full_queue_is_refused_with_a_time_to_retry(engine: RunningEngine) -> None:
    async def scenario(frontend: Frontend) -> tuple[int, int, set[int | None]]:
        streams = [frontend.submit([i], greedy(40)) for i in range(MAX_WAITING + 40)]
        ends = await asyncio.gather(*map(tokens_of, streams), return_exceptions=True)
        refused = [end for end in ends if isinstance(end, CapacityError)]
        answered = [end for end in ends if isinstance(end, list)]
        assert all(len(tokens) == 40 for tokens in answered)
        assert len(refused) + len(answered) == len(ends)
        return len(refused), len(answered), {error.retry_after_s for error in refused}

    refused, answered, retry_after_s = engine.run(scenario)
    assert refused > 0
    assert answered >= MAX_WAITING
    assert None not in retry_after_s


def test_what_can_never_fit_is_refused_and_the_engine_goes_on(engine: RunningEngine) -> None:
    async def scenario(frontend: Frontend) -> list[int]:
        with pytest.raises((RequestError, CapacityError), match=r"\d"):
            await tokens_of(frontend.submit([1] * 4096, greedy()))
        with pytest.raises(RequestError):
            await tokens_of(frontend.submit([], greedy()))
        with pytest.raises(RequestError, match="63"):
            await tokens_of(frontend.submit([1], greedy(), request_id="x" * 64))
        with pytest.raises(RequestError, match="token id 100000"):
            frontend.submit([100000], greedy())
        return await tokens_of(frontend.submit([1], greedy(3)))

    assert len(engine.run(scenario)) == 3


def test_two_hundred_random_aborts_leave_no_block_in_use(engine: RunningEngine) -> None:
    draw = random.Random(7)
    probe = [3, 1, 4, 1, 5]

    async def one(frontend: Frontend, prompt: list[int], patience: int) -> None:
        async with frontend.submit(prompt, greedy(200)) as stream:
            for _ in range(patience):
                await anext(stream)

    async def scenario(frontend: Frontend) -> tuple[list[int], list[int], EngineStats]:
        before = await tokens_of(frontend.submit(probe, greedy()))
        for _ in range(10):
            await asyncio.gather(
                *(
                    one(frontend, [draw.randrange(94)] * draw.randint(1, 120), draw.randint(0, 4))
                    for _ in range(20)
                )
            )
        after = await tokens_of(frontend.submit(probe, greedy()))
        return before, after, await stats_when(frontend, is_idle, timeout_s=60)

    before, after, stats = engine.run(scenario)
    assert before == after
    assert is_idle(stats)
    assert stats.blocks_used == 0


def test_a_client_process_that_is_gone_leaves_nothing_behind(engine: RunningEngine) -> None:
    async def vanish(frontend: Frontend) -> None:
        stream = frontend.submit([8, 8], greedy(4000))
        await anext(stream)
        frontend._streams.clear()  # no farewell: only the closed socket tells

    async def look(frontend: Frontend) -> EngineStats:
        return await stats_when(frontend, is_idle, timeout_s=60)

    engine.run(vanish)
    assert is_idle(engine.run(look))


def test_a_submit_of_another_epoch_is_dropped(engine: RunningEngine) -> None:
    async def model_of(frontend: Frontend) -> object:
        return frontend.model

    model = engine.run(model_of)
    submit = make_submit(model, [1, 2], greedy(2), "stale", epoch=99)  # type: ignore[arg-type]
    fresh = msgspec.structs.replace(submit, request_id="fresh", epoch=1)
    seen: list[str] = []
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(engine.address)
        for message in (Hello(wire_version=1, seen_epoch=0), submit, fresh):
            socket.send(msgspec.msgpack.encode(message))
        while "end" not in seen:
            assert socket.poll(60_000)
            message = msgspec.msgpack.decode(socket.recv(), type=FromEngine)
            if isinstance(message, Welcome):
                assert message.epoch == 1
            elif isinstance(message, TokensOut):
                for delta in message.deltas:
                    seen += [delta.request_id] + (["end"] if delta.finish_reason else [])
    assert set(seen) == {"fresh", "end"}


def test_all_deltas_of_a_step_travel_as_one_message(engine: RunningEngine) -> None:
    async def scenario(frontend: Frontend) -> list[int]:
        sizes: list[int] = []
        deliver = frontend._deliver

        def watch(message: TokensOut) -> None:
            sizes.append(len(message.deltas))
            deliver(message)

        frontend._deliver = watch  # type: ignore[method-assign]
        await asyncio.gather(*(tokens_of(frontend.submit([i], greedy(50))) for i in range(6)))
        return sizes

    sizes = engine.run(scenario)
    assert sum(sizes) == 300
    assert sizes.count(6) > 30


@pytest.mark.parametrize(
    "payload", [b"\xc1", b"", msgspec.msgpack.encode({"type": "Welcome", "epoch": "x"})]
)
def test_an_engine_that_is_not_understood_is_given_up(tmp_path: Path, payload: bytes) -> None:
    async def scenario(address: str, socket: zmq.Socket[bytes]) -> None:
        connecting = asyncio.create_task(Frontend.connect(address, timeout_s=60))
        while not socket.poll(0):
            await asyncio.sleep(0.01)
        client, _ = socket.recv_multipart()
        socket.send_multipart((client, payload))
        await connecting

    address = f"ipc://{tmp_path}/e"
    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(address)
        with pytest.raises(EngineError, match="cannot read a message of the engine"):
            asyncio.run(scenario(address, socket))


def test_a_fast_engine_does_not_keep_the_loop_from_anything_else(tmp_path: Path) -> None:
    address, num_messages = f"ipc://{tmp_path}/e", 2000

    async def scenario(socket: zmq.Socket[bytes]) -> tuple[int, int]:
        frontend = Frontend(address)
        while not socket.poll(0):
            await asyncio.sleep(0.01)
        client, _ = socket.recv_multipart()
        taken = turns = 0

        def count(message: FromEngine) -> None:
            nonlocal taken
            taken += 1

        frontend._socket._take = count  # type: ignore[method-assign]
        payload = msgspec.msgpack.encode(TokensOut((), 7))
        for _ in range(num_messages):
            socket.send_multipart((client, payload))
        time.sleep(0.3)  # the loop stands still until all have arrived, or most
        deadline_s = time.monotonic() + 60
        while taken < num_messages and time.monotonic() < deadline_s:
            turns += 1
            await asyncio.sleep(0)
        await frontend.close()
        return taken, turns

    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.setsockopt(zmq.SNDHWM, 0)
        socket.bind(address)
        taken, turns = asyncio.run(scenario(socket))
    assert taken == num_messages
    assert turns >= 20
