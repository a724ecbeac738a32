"""An engine on two ranks answers as one rank does, and a failing rank is named and replaced."""

from __future__ import annotations

import asyncio
import functools
import os
import shutil
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.engines import TEST_SETTINGS, RunningEngine, tokens_of
from tests.support.processes import wait_gone, workers_of
from tests.support.rank_faults import HANG_TOKEN, RAISE_TOKEN
from tests.support.scripted import write_scripted_model

from tokenspeed import LLM, SamplingParams
from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine import rank_build
from tokenspeed.engine.ranks.failure import RankFailure
from tokenspeed.engine.ranks.group import RankGroup, RankStart
from tokenspeed.engine.ranks.group_seat import GroupSeat
from tokenspeed.engine.ranks.messages import RankHello
from tokenspeed.engine.ranks.progress import RankProgress
from tokenspeed.engine.ranks.watch import RankWatch
from tokenspeed.engine.ranks.wire import FrameReader
from tokenspeed.engine.ranks.workers import Worker
from tokenspeed.errors import ConfigError, PluginError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tokenspeed.engine.frontend import Frontend

FAULTS = Path(__file__).parents[3] / "support" / "rank_faults.py"
PROMPTS = [[index * 7 % 90, index, 3] * (4 + index * 3) for index in range(5)]
SEEDED = SamplingParams(temperature=1.0, seed=5, max_tokens=60)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24)
SCORED = SamplingParams(temperature=0.0, max_tokens=8, prompt_logprobs=1)
HANGS_S = 3.0
NAMED_S = 30.0
"""The time that a machine of tests may take over what an idle one does in HANGS_S."""
TWO = {"tp": 2, "rank_timeout_s": 60.0, "plugins": ("sdk", "reference")}


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Settings of an engine whose worker fails at certain tokens."""
    folder = tmp_path / "modules"
    folder.mkdir()
    shutil.copy(FAULTS, folder / "rank_faults.py")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    model = write_scripted_model(
        tmp_path / "faulty", architectures=["FaultyRanksForCausalLM"], step_ms=4
    )
    return {"model": model, "model_module": ("rank_faults",), **TWO, "rank_timeout_s": HANGS_S}


def llm(model: Path, **settings: Any) -> LLM:
    return LLM(str(model), **{**TEST_SETTINGS, **settings})


@pytest.mark.parametrize("depth", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_two_ranks_give_the_tokens_of_one(tmp_path: Path, depth: int) -> None:
    model = write_scripted_model(tmp_path / "model", window=24, state_layers=1, logit_gap=4.0)
    params = [GREEDY, SEEDED, GREEDY, SEEDED, SCORED]
    found = []
    for settings in ({}, TWO):
        with llm(model, depth=depth, max_step_tokens=16, **settings) as engine:
            outputs = [engine.generate(PROMPTS, params) for _ in range(2)]
            found.append([[(o.token_ids, o.prompt_logprobs) for o in each] for each in outputs])
    assert found[0] == found[1]


def test_drafts_are_verified_alike_on_two_ranks(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model", script="ab" * 40)
    found = []
    for settings in ({}, TWO):
        with llm(model, speculator="ngram", **settings) as engine:
            outputs = engine.generate([[1, 2, 3] * 5] * 3, GREEDY)
            found.append([output.token_ids for output in outputs])
            assert engine.stats().accepted_tokens > 0
    assert found[0] == found[1]


def test_closing_ends_the_workers_in_peace(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with llm(write_scripted_model(tmp_path / "model"), **TWO) as engine:
        workers = workers_of(os.getpid())
        assert len(workers) == 1
        engine.generate(PROMPTS, GREEDY)
        started_s = time.monotonic()
    assert time.monotonic() - started_s < NAMED_S
    assert wait_gone(workers, timeout_s=0) == []
    assert "ERROR" not in caplog.text


def test_a_killed_worker_is_named_and_ends_an_llm(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path / "model", step_ms=20)
    with llm(model, **TWO) as engine:
        (worker,) = workers_of(os.getpid())
        stream = engine.stream(PROMPTS[0], SamplingParams(max_tokens=200))
        next(stream)
        os.kill(worker, signal.SIGKILL)
        with pytest.raises(RankFailure, match=rf"rank 1 \(pid {worker} on .*SIGKILL"):
            list(stream)
        with pytest.raises(RankFailure, match="rank 1"):
            engine.generate(PROMPTS[0], GREEDY)


def test_a_lost_plan_is_a_disagreement_of_the_rank_that_noticed(tmp_path: Path) -> None:
    with llm(write_scripted_model(tmp_path / "model"), **TWO) as engine:
        leading: Any = engine.engine.executor
        encode = leading._encoder.encode

        class Losing:
            def encode(self, plan: Any, spans: Any) -> bytes:
                encode(plan, spans)
                message: bytes = encode(plan, spans)
                return message

        leading._encoder = Losing()
        with pytest.raises(
            RankFailure, match=r"rank 1 disagrees with rank 0: plan number 1 came where 0 is due"
        ):
            engine.generate(PROMPTS[0], GREEDY)


def test_a_worker_that_cannot_be_built_ends_the_start_with_its_error(
    faulty: dict[str, Any],
) -> None:
    model = faulty.pop("model")
    write_scripted_model(
        model, architectures=["FaultyRanksForCausalLM"], worker_fails_to_build=True
    )
    with pytest.raises(PluginError, match=r"rank 1 \(pid \d+ on .*no such worker today"):
        llm(model, **faulty)
    assert workers_of(os.getpid()) == []


def test_a_worker_that_is_silent_while_it_starts_is_named() -> None:
    ours, theirs = socket.socketpair()
    hello = RankHello(rank=1, pid=77, host="here")
    watch = RankWatch(
        lambda: [Worker(1, ours, FrameReader(ours), hello=hello, heard_s=0.0)],
        RankProgress(),
        timeout_s=60.0,
        start_timeout_s=0.5,
        ends_process=False,
        tick=lambda: None,
    )
    watch.start()
    started_s = time.monotonic()
    with theirs, pytest.raises(RankFailure, match=r"rank 1 \(pid 77 on here\) hangs: it says noth"):
        watch.wait_for(lambda worker: worker.loaded is not None, 1)
    assert 0.5 < time.monotonic() - started_s < NAMED_S
    watch.close(in_peace=False)


@pytest.mark.slow
def test_a_worker_that_loads_for_longer_than_a_collective_may_take_is_waited_for(
    faulty: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_build, "GroupSeat", functools.partial(GroupSeat, timeout_s=3.0))
    model = faulty.pop("model")
    write_scripted_model(model, architectures=["FaultyRanksForCausalLM"], worker_builds_s=4.0)
    with llm(model, **faulty) as engine:
        (output,) = engine.generate(PROMPTS[:1], GREEDY)
    assert len(output.token_ids) == GREEDY.max_tokens


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tune": True}, "tune is True and the replica has 2 ranks"),
        ({"dp": 2, "record": "file"}, "record is file and dp is 2"),
        ({"ep": 3}, "do not fit together"),
    ],
)
def test_what_several_ranks_cannot_do_is_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        llm(write_scripted_model(tmp_path / "model"), **{**TWO, **settings})


@pytest.mark.parametrize(
    ("first", "is_elsewhere", "devices"),
    [(0, False, [0, 1, 2]), (3, False, [3, 4, 5]), (3, True, [3, 1, 0])],
)
def test_ranks_of_a_host_have_the_devices_from_the_first_one_on(
    first: int, is_elsewhere: bool, devices: list[int]
) -> None:
    host, away = socket.gethostname(), "elsewhere"
    hosts = (host, away) if is_elsewhere else (host, host)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        start = RankStart(listener=ours if is_elsewhere else None, device_index=first)
        no_plugins: Any = None
        group = RankGroup(EngineConfig(tp=3), no_plugins, 3, start)
        workers = [
            Worker(rank, theirs, FrameReader(theirs), hello=RankHello(rank=rank, pid=1, host=name))
            for rank, name in enumerate(hosts, start=1)
        ]
        assert [place.device_index for place in group._places(workers)] == devices


def test_a_launcher_of_one_rank_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="launcher is ray, and the settings ask for one rank"):
        llm(write_scripted_model(tmp_path / "model"), launcher="ray")


async def undisturbed(frontend: Frontend) -> list[list[int]]:
    """Answers of all prompts."""
    return await asyncio.gather(*(tokens_of(frontend.submit(p, SEEDED)) for p in PROMPTS))


def disturbed(engine: RunningEngine, disturb: Any) -> list[list[int]]:
    """Answers of all prompts, while something happens to the engine's ranks."""

    async def scenario(frontend: Frontend) -> list[list[int]]:
        streams = [frontend.submit(prompt, SEEDED) for prompt in PROMPTS]
        collected: list[list[int]] = [[] for _ in PROMPTS]

        async def read(index: int) -> None:
            async for delta in streams[index]:
                collected[index] += delta.tokens

        readers = asyncio.gather(*map(read, range(len(PROMPTS))))
        while max(map(len, collected)) < 5:
            await asyncio.sleep(0.001)
        disturb(frontend)
        await readers
        return collected

    return engine.run(scenario)


def wait_named(log: Callable[[], str], words: str, since_s: float) -> None:
    """Wait for words in the log; they must come within the promised time."""
    text = ""
    while words not in text:
        assert time.monotonic() - since_s < NAMED_S, f"{words!r} is not in {text}"
        time.sleep(0.02)
        text += log()


@pytest.mark.parametrize(
    ("victim", "number"),
    [
        ("worker", signal.SIGKILL),
        pytest.param("worker", signal.SIGSTOP, marks=pytest.mark.slow),
        pytest.param("engine", signal.SIGKILL, marks=pytest.mark.slow),
        pytest.param("engine", signal.SIGSTOP, marks=pytest.mark.slow),
    ],
)
def test_streams_go_on_over_a_rank_that_is_killed_or_stopped(
    faulty: dict[str, Any],
    victim: str,
    number: signal.Signals,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    with RunningEngine(**faulty) as engine:
        expected = engine.run(undisturbed)
        pid = engine.supervisor.pid
        assert pid is not None
        (worker,) = workers_of(pid)
        happened_s = 0.0

        def disturb(frontend: Frontend) -> None:
            nonlocal happened_s
            os.kill(worker if victim == "worker" else pid, number)
            happened_s = time.monotonic()
            words = {
                ("worker", signal.SIGKILL): f"rank 1 (pid {worker} on",
                ("worker", signal.SIGSTOP): f"rank 1 (pid {worker} on",
                ("engine", signal.SIGKILL): f"(pid {pid}) was ended by SIGKILL",
                ("engine", signal.SIGSTOP): f"rank 0 (pid {pid}) hangs",
            }[victim, number]
            wait_named(lambda: capfd.readouterr().err + caplog.text, words, happened_s)

        assert disturbed(engine, disturb) == expected
        assert engine.supervisor.num_restarts == 1
        assert wait_gone([worker, pid]) == []
        again = engine.supervisor.pid
        assert again is not None
        workers = workers_of(again)
        assert len(workers) == 1
    assert wait_gone([again, *workers]) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("token", "words"),
    [
        (HANG_TOKEN, "hangs: it stands before collective"),
        (RAISE_TOKEN, "this rank has had enough"),
    ],
)
def test_a_rank_that_hangs_or_raises_in_a_step_is_named_and_others_streams_go_on(
    faulty: dict[str, Any], token: int, words: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with RunningEngine(**faulty) as engine:
        expected = engine.run(undisturbed)

        def disturb(frontend: Frontend) -> None:
            frontend.submit([5, token, 6], GREEDY)

        assert disturbed(engine, disturb) == expected
        assert engine.supervisor.num_restarts == 2, "the poison is tried once more, alone"
    log = capfd.readouterr().err
    assert "rank 1 (pid" in log
    assert words in log


@pytest.fixture(autouse=True)
def no_worker_is_left() -> Iterator[None]:
    """Whatever a test does, its engine leaves no process behind."""
    yield
    assert wait_gone(workers_of(os.getpid())) == []
