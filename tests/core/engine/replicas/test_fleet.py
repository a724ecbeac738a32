"""Several real engines behind one front end: spread, resumed, moved, asked as one."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from tests.support.engines import tokens_of
from tests.support.fleets import RunningFleet
from tests.support.processes import workers_of
from tests.support.scripted import write_scripted_model

from tokenspeed import SamplingParams
from tokenspeed.engine.messages import TenantFigures, Terms
from tokenspeed.engine.replicas import fleet as fleet_module
from tokenspeed.engine.replicas.fleet import Fleet
from tokenspeed.errors import EngineAwayError, EngineError, EngineGoneError

REPLICAS = 3
STREAMS = 64
POISON = 200
GREEDY = SamplingParams(temperature=0.0, max_tokens=60)
PROMPTS = [[index % 94, index // 94, 5, 7] * (3 + index % 9) for index in range(STREAMS)]


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningFleet]:
    model = write_scripted_model(
        tmp_path_factory.mktemp("fleet") / "model", step_ms=4, crash_on_token=POISON
    )
    with RunningFleet(model, replicas=REPLICAS, max_running=32) as engines:
        yield engines


async def answers(fleet: Fleet, terms: Terms | None = None) -> list[list[int]]:
    """Answers of all prompts, asked at once."""
    streams = [fleet.submit(prompt, GREEDY, terms=terms) for prompt in PROMPTS]
    return await asyncio.gather(*map(tokens_of, streams))


async def all_here(fleet: Fleet) -> None:
    """Wait until every replica answers."""
    deadline_s = time.monotonic() + 60
    while not all(replica.is_here for replica in fleet.replicas):
        assert time.monotonic() < deadline_s, "a replica did not come back"
        await asyncio.sleep(0.05)


def test_requests_spread_and_nothing_is_left_of_them(engines: RunningFleet) -> None:
    async def scenario(fleet: Fleet) -> None:
        assert all(map(len, await answers(fleet)))
        assert fleet.router is not None
        assert min(fleet.router.routed) > 10
        assert fleet.live_requests == 0
        assert [load.own_live for load in fleet.router.loads] == [0] * REPLICAS

    engines.run(scenario)


def test_a_replica_killed_under_sixty_four_streams_costs_no_stream_and_no_token(
    engines: RunningFleet,
) -> None:
    async def scenario(fleet: Fleet) -> None:
        expected = await answers(fleet)
        streams = [fleet.submit(prompt, GREEDY) for prompt in PROMPTS]
        victim = fleet.replicas[1]
        assert victim.frontend.live_requests > 10
        collected: list[list[int]] = [[] for _ in PROMPTS]

        async def read(index: int) -> None:
            async for delta in streams[index]:
                collected[index] += delta.tokens

        readers = asyncio.gather(*map(read, range(STREAMS)))
        while max(map(len, collected)) < 10:
            await asyncio.sleep(0.001)
        engines.kill(1)
        while victim.is_here:
            await asyncio.sleep(0.001)
        late = [fleet.submit(prompt, GREEDY) for prompt in PROMPTS[:6]]
        assert {fleet._routed[it.request_id].replica for it in late} <= {0, 2}
        await readers
        assert await asyncio.gather(*map(tokens_of, late)) == expected[:6]
        assert collected == expected
        await all_here(fleet)
        assert victim.frontend.epoch == 2

    engines.run(scenario)


def test_suspects_of_a_replica_that_stays_down_go_on_elsewhere_on_trial(
    engines: RunningFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_module, "PATIENCE_S", 0.3)

    async def scenario(fleet: Fleet) -> None:
        (supervisor,) = engines.replicas._supervisors[2:]
        expected = await answers(fleet)
        streams = [fleet.submit(prompt, GREEDY) for prompt in PROMPTS]
        readers = asyncio.gather(*map(tokens_of, streams))
        while not fleet.replicas[2].frontend.live_requests:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)
        spawn, are_read = supervisor._spawn, threading.Event()
        supervisor._spawn = lambda fd: are_read.wait(60) and spawn(fd)  # type: ignore[method-assign,assignment,return-value]
        engines.kill(2)
        assert await readers == expected
        assert fleet.replicas[2].away_since_s is not None, "they did not wait for it"
        are_read.set()
        supervisor._spawn = spawn  # type: ignore[method-assign]
        await all_here(fleet)

    engines.run(scenario)


@pytest.mark.slow
def test_a_request_that_kills_two_engines_is_given_up(engines: RunningFleet) -> None:
    async def scenario(fleet: Fleet) -> None:
        poison = fleet.submit([5, POISON, 6], GREEDY)
        with pytest.raises(EngineError, match="two crashes"):
            await tokens_of(poison)
        await all_here(fleet)
        assert fleet.router is not None
        assert [load.own_live for load in fleet.router.loads] == [0] * REPLICAS

    engines.run(scenario)


def test_a_session_is_told_and_released_over_all_replicas(engines: RunningFleet) -> None:
    terms = Terms(session="s", owner="o")

    async def scenario(fleet: Fleet) -> None:
        unknown = await fleet.session("o", "nobody")
        assert unknown.outcome == "unknown"
        for replica in fleet.replicas:  # as when it had moved
            await tokens_of(replica.frontend.submit([9] * 40, GREEDY, terms=terms))
        told = msgspec.msgpack.decode((await fleet.session("o", "s")).body)
        assert (told["turns"], told["prompt_tokens"]) == (REPLICAS, 40 * REPLICAS)
        live = fleet.submit([8], SamplingParams(max_tokens=3000), terms=terms)
        await anext(live)
        busy = await fleet.release_session("o", "s")
        assert busy.outcome == "busy"
        assert msgspec.msgpack.decode(busy.body)["live_requests"] == {"s": 1}
        done = await fleet.release_session("o", "s", abort=True)
        assert done.outcome == "done"
        assert (await fleet.session("o", "s")).outcome == "unknown"

    engines.run(scenario)


def test_a_tenants_figures_are_shared_out_and_summed_up(engines: RunningFleet) -> None:
    async def scenario(fleet: Fleet) -> None:
        states = await fleet.change_tenant("t", TenantFigures(30_000, 300_000))
        assert [(it.name, it.floor_bytes, it.cap_bytes) for it in states] == [
            ("t", 30_000, 300_000)
        ]
        (own,) = await fleet.frontends[1].tenants()
        assert (own.floor_bytes, own.cap_bytes) == (10_000, 100_000)
        fleet.replicas[1].away_since_s = time.monotonic()
        with pytest.raises(EngineAwayError, match="nothing was changed"):
            await fleet.change_tenant("t", TenantFigures())
        fleet.replicas[1].away_since_s = None
        assert await fleet.change_tenant("t", TenantFigures()) == ()

    engines.run(scenario)


def test_the_picture_is_one_of_all(engines: RunningFleet) -> None:
    async def scenario(fleet: Fleet) -> None:
        streams = [fleet.submit(prompt, SamplingParams(max_tokens=2000)) for prompt in PROMPTS[:9]]
        await asyncio.gather(*(anext(stream) for stream in streams))
        state = await fleet.state()
        assert {request["replica"] for request in state["requests"]} == {0, 1, 2}
        assert len(state["requests"]) == 9
        each = [replica["counters"]["decoding"] for replica in state["replicas"]]
        assert state["counters"]["decoding"] == sum(each) == 9
        assert state["limits"]["max_running"] == 32 * REPLICAS
        for stream in streams:
            await stream.aclose()

    engines.run(scenario)


def test_closing_ends_streams_with_the_reason_and_moves_none(engines: RunningFleet) -> None:
    async def scenario(fleet: Fleet) -> None:
        stream = fleet.submit([1], SamplingParams(max_tokens=3000))
        await anext(stream)
        fleet.give_up("the server stops")
        with pytest.raises(EngineGoneError, match="the server stops"):
            await tokens_of(stream)

    engines.run(scenario)


@pytest.mark.slow
def test_replicas_may_have_several_ranks_each(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model")

    async def scenario(fleet: Fleet) -> list[list[int]]:
        return await answers(fleet)

    with RunningFleet(model, replicas=2) as plain:
        expected = plain.run(scenario)
    two = {"tp": 2, "rank_timeout_s": 20.0, "plugins": ("sdk", "reference")}
    with RunningFleet(model, replicas=2, **two) as engines:
        pids = [pid for pid in engines.replicas.pids if pid is not None]
        assert [len(workers_of(pid)) for pid in pids] == [1, 1]
        assert engines.run(scenario) == expected
