"""The picture of the engine's inside: what it says, and how seldom it is drawn."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import zmq
from tests.support.engines import RunningEngine, deltas_of
from tests.support.scripted import write_scripted_model

from tokenspeed import SamplingParams
from tokenspeed.engine.activity import Activity
from tokenspeed.engine.cache_tally import CacheTally
from tokenspeed.engine.frontend import Frontend
from tokenspeed.engine.messages import WIRE_VERSION, ModelInfo, StateQuery, ToEngine, Welcome
from tokenspeed.engine.meter import StepMeter
from tokenspeed.engine.requests import LiveRequest, RequestTable
from tokenspeed.engine.snapshot import MAX_SHARE, MIN_AGE_S, Snapshot
from tokenspeed.errors import EngineAwayError

COUNTERS = dict.fromkeys(("blocks_total", "blocks_used", "blocks_cached", "blocks_free"), 0)


class FakeScheduler:
    """Says what it is given; counts how often it is asked."""

    def __init__(self, **state: Any) -> None:
        self.asked = 0
        self._state = state

    def state(self) -> dict[str, Any]:
        self.asked += 1
        return self._state

    def stats(self) -> dict[str, int]:
        return COUNTERS


def make_snapshot(
    scheduler: FakeScheduler, requests: RequestTable | None = None, **options: Any
) -> Snapshot:
    limits = ("max_running", "max_step_tokens", "max_context_tokens", "block_tokens", "depth")
    engine: Any = SimpleNamespace(
        scheduler=scheduler,
        info=SimpleNamespace(name="m"),
        report=SimpleNamespace(**dict.fromkeys(limits, 1)),
        cache_groups=("full", "window"),
    )
    return Snapshot(
        engine,
        requests or RequestTable(),
        StepMeter(),
        Activity(),
        CacheTally(),
        epoch=3,
        **options,
    )


def request(key: int, state: str, **fields: Any) -> dict[str, Any]:
    """One request as a scheduler describes it."""
    return {"id": key, "state": state, "priority": 0, "blocks": [[], []], **fields}


def test_many_watchers_cost_one_picture_and_a_large_one_a_share_of_the_time() -> None:
    now_s = [0.0]

    class SlowScheduler(FakeScheduler):
        def state(self) -> dict[str, Any]:
            now_s[0] += 0.05
            return super().state()

    scheduler = SlowScheduler()
    snapshot = make_snapshot(scheduler, clock=lambda: now_s[0])
    first = snapshot.packed()
    pause_s = 0.05 / MAX_SHARE
    assert pause_s > MIN_AGE_S
    now_s[0] += pause_s * 0.99
    assert snapshot.packed() is first
    assert scheduler.asked == 1
    now_s[0] += pause_s * 0.02
    snapshot.packed()
    assert scheduler.asked == 2


def test_queue_and_running_are_told_apart_and_named() -> None:
    table = RequestTable()
    table.add(LiveRequest(5, "mine", b"c", 2, num_prompt=40, cached_tokens=32))
    scheduler = FakeScheduler(
        requests=[
            request(5, "Decoding", blocks=[[1, 2, 3], [7]]),
            request(6, "Submitted"),
            request(7, "Retracted", priority=9, reason="out of blocks"),
        ],
        tiers=[{"name": "host", "total": 4, "used": 1}],
    )
    state = make_snapshot(scheduler, table).build()
    (running,) = state["requests"]
    assert (running["id"], running["prompt_tokens"], running["cached_tokens"]) == ("mine", 40, 32)
    assert running["blocks"] == {"full": 3, "window": 1}
    assert [(item["key"], item["position"]) for item in state["queue"]] == [(7, 0), (6, 1)]
    assert state["queue"][0]["reason"] == "out of blocks"
    assert state["states"] == {"Decoding": 1, "Submitted": 1, "Retracted": 1}
    assert state["tiers"] == [{"name": "host", "total": 4, "used": 1}]


def test_the_schedulers_own_order_of_the_queue_wins() -> None:
    waiting = [request(1, "Submitted", position=1), request(2, "Submitted", position=0)]
    state = make_snapshot(FakeScheduler(requests=waiting)).build()
    assert [item["key"] for item in state["queue"]] == [2, 1]


def test_physical_blocks_are_counted_by_group_and_holder() -> None:
    physical = [(-1, 0), (0, 2), (0, 0), (1, 1), (0, 1)]
    blocks = [{"id": i, "group": group, "refs": refs} for i, (group, refs) in enumerate(physical)]
    state = make_snapshot(FakeScheduler(physical_blocks=blocks)).build()
    assert state["blocks"]["groups"] == [
        {"name": "full", "used": 2, "cached": 1},
        {"name": "window", "used": 1, "cached": 0},
    ]


def test_a_running_engine_tells_its_state_and_its_streams_go_on(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model", step_ms=2)
    params = SamplingParams(temperature=0.0, max_tokens=60)

    async def scenario(frontend: Frontend) -> tuple[list[dict[str, Any]], int]:
        streams = [frontend.submit([index] * 40, params) for index in range(12)]
        reading = [asyncio.create_task(deltas_of(stream)) for stream in streams]
        await asyncio.sleep(0.05)
        states = await asyncio.gather(*(frontend.state() for _ in range(20)))
        ends = await asyncio.gather(*reading)
        return states, sum(len(delta.tokens) for deltas in ends for delta in deltas)

    with RunningEngine(model) as engine:
        states, num_tokens = engine.run(scenario)
    assert num_tokens == 12 * 60
    assert all(state == states[0] for state in states), "those who ask at once share one answer"
    assert (len(states[0]["requests"]), len(states[0]["queue"])) == (8, 4)
    counters = states[0]["counters"]
    assert counters["prefilling"] + counters["decoding"] == 8
    assert states[0]["blocks"]["used"] == counters["blocks_used"] > 0


def test_an_engine_that_is_silent_is_an_error_after_a_while_and_no_hang(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/e"
    info = ModelInfo(
        name="m", path="", architecture="", vocab_size=9, max_context_tokens=9,
        max_prompt_tokens=8, eos_token_ids=(),
    )  # fmt: skip
    seen: list[object] = []

    def pretend() -> None:
        """Welcome a front end, then say nothing more."""
        decoder = msgspec.msgpack.Decoder(ToEngine)
        welcome = Welcome(wire_version=WIRE_VERSION, epoch=1, model=info)
        while not any(isinstance(message, StateQuery) for message in seen):
            client, payload = socket.recv_multipart()
            seen.append(decoder.decode(payload))
            if len(seen) == 1:
                socket.send_multipart((client, msgspec.msgpack.encode(welcome)))

    async def scenario() -> None:
        frontend = await Frontend.connect(address, timeout_s=30)
        with pytest.raises(EngineAwayError, match="ask again"):
            await frontend.state(timeout_s=0.1)
        await frontend.close()

    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(address)
        thread = threading.Thread(target=pretend)
        thread.start()
        asyncio.run(scenario())
        thread.join(10)
    assert isinstance(seen[-1], StateQuery)
