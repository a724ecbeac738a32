"""The picture of the engine's inside: what it says, and how seldom it is drawn."""

from __future__ import annotations

import asyncio
import threading
import time
from array import array
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
from tokenspeed.engine.picture import spelled_out
from tokenspeed.engine.requests import LiveRequest, RequestTable
from tokenspeed.engine.snapshot import MAX_SHARE, MIN_AGE_S, Snapshot
from tokenspeed.errors import EngineAwayError

COUNTERS = dict.fromkeys(("blocks_total", "blocks_used", "blocks_cached", "blocks_free"), 0)


FIELDS: dict[str, Any] = {
    "reason": "", "waits_for": -1, "position": -1, "pieces": 0, "arrived": 0, "priority": 0,
    "slot": -1, "tenant": 0, "session": 0, "prompt_tokens": 40, "output_tokens": 0,
    "cached_tokens": -1, "computed_tokens": 0, "planned_tokens": 0,
}  # fmt: skip


class FakeScheduler:
    """Says what it is given; counts how often it is asked."""

    def __init__(self, *requests: dict[str, Any], **state: Any) -> None:
        self.asked = 0
        names = ("id", "state", *FIELDS)
        columns = {name: [item[name] for item in requests] for name in names}
        blocks = [[item["blocks"][group] for item in requests] for group in range(2)]
        self._state = {
            "requests": {**columns, "blocks": blocks},
            "groups": [], "host": None, "store_records": None, "transfers": [],
            "step_model": None, "parked": 0, **state,
        }  # fmt: skip

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
        store=None,
        drafting=None,
        expert_loads=None,
        scheduler=scheduler,
        info=SimpleNamespace(name="m"),
        report=SimpleNamespace(**dict.fromkeys(limits, 1), kv_bytes=4096),
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
    return {"id": key, "state": state, **FIELDS, "blocks": (0, 0), **fields}


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
    table.add(LiveRequest(5, "mine", b"c", array("i", [1, 2]), num_prompt=40))
    table.add(LiveRequest(6, "other", b"c", num_prompt=40))
    scheduler = FakeScheduler(
        request(5, "Decoding", blocks=(3, 1), cached_tokens=32),
        request(6, "Submitted", reason="computing", waits_for=5),
        request(7, "Retracted", priority=9, reason="room", position=1),
        request(8, "Submitted", reason="next_step", position=0),
    )
    state = spelled_out(make_snapshot(scheduler, table).build())
    (running,) = state["requests"]
    assert (running["id"], running["prompt_tokens"], running["cached_tokens"]) == ("mine", 40, 32)
    assert running["blocks"] == {"full": 3, "window": 1}
    queue = [(item["key"], item["position"], item["waits_for"]) for item in state["queue"]]
    assert queue == [(8, 0, None), (7, 1, None), (6, None, "mine")]
    assert state["queue"][0]["id"] is None, "its name is gone"
    assert state["queue"][1]["reason"] == "room"
    assert state["states"] == {"Decoding": 1, "Submitted": 2, "Retracted": 1}


def test_blocks_tiers_and_transfers_are_told_by_group_and_age() -> None:
    counts = dict.fromkeys(("held", "resting", "retained", "vacant", "leaving", "loading"), 1)
    groups = [
        {"name": "full", "kind": "full", "packing": 2, "physical_used": 3, "physical_cached": 4,
         "indexed": 9, "host": 2, **counts},
        {"name": "s", "kind": "state", "packing": 1, "physical_used": 1, "physical_cached": 0,
         "indexed": 5, "host": 0, **counts},
    ]  # fmt: skip
    now_us = time.monotonic_ns() // 1000
    state = make_snapshot(
        FakeScheduler(
            groups=groups,
            host={"total": 4, "used": 1, "cached": 1, "free": 2, "items": 2, "arriving": 1},
            store_records=6,
            transfers=[
                {"kind": "write", "count": 2, "oldest_us": now_us - 2_000_000},
                {"kind": "load", "count": 0, "oldest_us": 0},
            ],
            step_model={"base_us": 1234.5678, "steps": 3},
        )
    ).build()
    full, states = state["blocks"]["groups"]
    assert (full["used"], full["cached"], full["logical"]["matchable"]) == (3, 4, 9)
    assert states["logical"]["snapshots"] == 5
    host, store = state["tiers"]
    assert (host["used"], host["free"], host["arriving"]) == (1, 2, 1)
    assert store == {"name": "store", "records": 6}
    write, load = state["transfers"]
    assert (write["count"], round(write["oldest_s"])) == (2, 2)
    assert (load["count"], load["oldest_s"]) == (0, None)
    assert state["step_model"] == {"base_us": 1235.0, "steps": 3}


def test_a_picture_of_many_requests_takes_the_engine_a_few_milliseconds() -> None:
    """1,024 that run and as many that wait; of the processor's time, the best of several."""
    scheduler = FakeScheduler(
        *(request(key, "Decoding", blocks=(512, 3)) for key in range(1024)),
        *(request(key, "Submitted", position=key - 1024) for key in range(1024, 2048)),
    )
    table = RequestTable()
    for key in range(2048):
        table.add(LiveRequest(key, f"cmpl-{key}", b"c", tenant="t", session=f"s{key}"))
    snapshot = make_snapshot(scheduler, table, clock=iter(range(10**6)).__next__)
    times_s = []
    for _ in range(8):
        snapshot._packed = b""
        started_s = time.thread_time()
        packed = snapshot.packed()
        times_s.append(time.thread_time() - started_s)
    assert len(spelled_out(msgspec.msgpack.decode(packed))["queue"]) == 1024
    assert min(times_s) < 0.015, "a mapping per request in the engine would take longer"


def test_a_running_engine_tells_its_state_and_its_streams_go_on(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model", step_ms=2)
    params = SamplingParams(temperature=0.0, max_tokens=200)

    async def scenario(frontend: Frontend) -> tuple[list[dict[str, Any]], int]:
        streams = [frontend.submit([index] * 40, params) for index in range(12)]
        reading = [asyncio.create_task(deltas_of(stream)) for stream in streams]
        while len((await frontend.state())["requests"]) < 8:
            await asyncio.sleep(0.01)
        states = await asyncio.gather(*(frontend.state() for _ in range(20)))
        ends = await asyncio.gather(*reading)
        return states, sum(len(delta.tokens) for deltas in ends for delta in deltas)

    with RunningEngine(model) as engine:
        states, num_tokens = engine.run(scenario)
    assert num_tokens == 12 * 200
    assert all(state == states[0] for state in states), "those who ask at once share one answer"
    assert (len(states[0]["requests"]), len(states[0]["queue"])) == (8, 4)
    counters = states[0]["counters"]
    assert counters["prefilling"] + counters["decoding"] == 8
    assert states[0]["blocks"]["used"] == counters["blocks_used"] > 0
    (group,) = states[0]["blocks"]["groups"]
    assert sum(item["blocks"]["full"] for item in states[0]["requests"]) == group["logical"]["held"]
    assert [item["position"] for item in states[0]["queue"]] == [0, 1, 2, 3]
    assert [item["reason"] for item in states[0]["queue"]] == ["slots", "queue", "queue", "queue"]
    assert {item["reason"] for item in states[0]["requests"]} == {""}


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
        frontend = await Frontend.connect(address, timeout_s=60)
        with pytest.raises(EngineAwayError, match="ask again"):
            await frontend.state(timeout_s=0.1)
        await frontend.close()

    with zmq.Context() as context, context.socket(zmq.ROUTER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.bind(address)
        thread = threading.Thread(target=pretend)
        thread.start()
        asyncio.run(scenario())
        thread.join(60)
    assert isinstance(seen[-1], StateQuery)
