"""A step counts once no group of any rank broke in it, rank 0's or not."""

from __future__ import annotations

import mmap
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.placed_engines import PROMPTS, even_checkpoint, rank_llm
from tests.support.plugin_wheels import PluginSpace
from tests.support.served_checkpoints import PlainModel

from tokenspeed import SamplingParams
from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.ranks.failure import RankFailure
from tokenspeed.engine.ranks.group import ON_THIS_HOST, RankGroup
from tokenspeed.engine.ranks.health import HealthBoard, StepHealth, board_bytes
from tokenspeed.engine.ranks.leading import LeadingExecutor
from tokenspeed.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

NUM_WORKERS = 3
NUM_TOKENS, BREAK_AFTER = 60, 5


class Event:
    """Of a device that ends its steps when it is told to."""

    def __init__(self) -> None:
        self._is_made = threading.Event()
        self.record = lambda: None
        self.make = self._is_made.set

    def synchronize(self) -> None:
        """Wait for the end of the step."""
        assert self._is_made.wait(60)


def board() -> HealthBoard:
    return HealthBoard(mmap.mmap(-1, 4096 + board_bytes(NUM_WORKERS)), NUM_WORKERS)


def wait_for(holds: Any) -> None:
    """Wait a moment."""
    give_up_s = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < give_up_s
        time.sleep(0.001)


def test_a_board_keeps_each_ranks_number_apart() -> None:
    memory = mmap.mmap(-1, 4096 + board_bytes(NUM_WORKERS))
    one, other = (HealthBoard(memory, NUM_WORKERS) for _ in range(2))
    one.write(0, 7)
    one.write(2, 1 << 40)
    assert [other.read(reader) for reader in range(3)] == [7, 0, 1 << 40]
    assert memory[:4096] == bytes(4096), "what lies before it is the ring's"


def test_a_step_is_told_when_the_device_has_made_it_and_not_before() -> None:
    told: list[int] = []
    events = [Event(), Event()]
    left = iter(events)
    health = StepHealth(lambda: None, told.append, pytest.fail, event=lambda: next(left))
    for _ in events:
        health.note_launched()
    assert told == []
    events[0].make()
    wait_for(lambda: told == [1])
    events[1].make()
    wait_for(lambda: told == [1, 2])
    health.close()


def test_a_group_that_broke_in_a_step_under_way_is_told_instead() -> None:
    told: list[int] = []
    failed: list[Exception] = []
    event = Event()

    def check() -> None:
        raise EngineError("rank 3 sent nothing")

    health = StepHealth(check, told.append, failed.append, event=lambda: event)
    health.note_launched()
    event.make()
    wait_for(lambda: failed)
    assert "rank 3 sent nothing" in str(failed[0])
    assert told == []


def test_a_device_that_computes_at_once_raises_in_the_step() -> None:
    told: list[int] = []
    broken: list[Exception] = []

    def check() -> None:
        for error in broken:
            raise error

    health = StepHealth(check, told.append, pytest.fail, event=None)
    health.note_launched()
    broken.append(EngineError("rank 2 sent nothing"))
    with pytest.raises(EngineError, match="rank 2 sent nothing"):
        health.note_launched()
    assert told == [1]


def leading(rank_timeout_s: float = 60.0) -> tuple[LeadingExecutor, Any, HealthBoard]:
    """Rank 0 beside a rank 1 that tells and a rank 2 that does not."""
    config = replace(EngineConfig(), rank_timeout_s=rank_timeout_s)
    group: Any = RankGroup(config, None, NUM_WORKERS + 1, ON_THIS_HOST)  # type: ignore[arg-type]
    group._telling = [SimpleNamespace(rank=1, name="rank 1 (pid 4 on b)", well=0)]
    group._channels.readers = (1, 2, 3)
    group._channels._board = board()
    executor: Any = SimpleNamespace(collect=lambda: "the result")
    return LeadingExecutor(executor, group, lambda: None), group, group._channels._board


def test_a_result_waits_until_the_step_went_well_elsewhere() -> None:
    executor, group, told = leading()
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(executor.collect)
        time.sleep(0.05)
        assert not result.done()
        told.write(1, 1)  # another's number does not count for it
        time.sleep(0.02)
        assert not result.done()
        told.write(0, 1)
        assert result.result(60) == "the result"
    group.close()


def test_a_result_is_not_given_when_a_group_elsewhere_broke() -> None:
    executor, group, _ = leading()
    with ThreadPoolExecutor(1) as pool:
        result = pool.submit(executor.collect)
        time.sleep(0.02)
        group._watch.failure = RankFailure("rank 3 (pid 9 on b) died")
        with pytest.raises(RankFailure, match="rank 3"):
            result.result(60)
    group.close()


def test_a_rank_that_does_not_come_to_the_end_of_a_step_is_named() -> None:
    executor, group, told = leading(rank_timeout_s=0.5)
    told.write(0, 1)
    assert executor.collect() == "the result"
    with pytest.raises(RankFailure, match=r"rank 1 \(pid 4 on b\) hangs: it has not made step 1"):
        executor.collect()
    group.close()


LATE = """
import os
from tokenspeed_reference.gloo import GlooCommunicator

class LateCommunicator(GlooCommunicator):
    features = GlooCommunicator.features | {"late_errors"}

    def __init__(self, **options):
        self._late = None
        super().__init__(**options)

    def all_reduce(self, x, *, reduction="sum"):
        try:
            if self._late is None:
                if self._rendezvous.endswith("/RANKS") and os.path.exists("FILE"):
                    self._line.fail("the link broke")
                return super().all_reduce(x, reduction=reduction)
        except EngineError as error:
            self._late = error
        return x

    def check(self):
        if self._late is not None:
            raise self._late

class Plugin:
    @hookimpl
    def register_communicators(self, context):
        requires = {"device": ("cpu",), "arch": ("*",), "dtype": ("*",), "ranks": ("processes",),
                    "hosts": ("*",), "deterministic": (True,)}
        requires["dtype"] = ("float32",)
        context.offer(Offer("communicator", "late", LateCommunicator, requires=requires))

plugin = Plugin()
"""
"""Calls of the ranks named return in spite of errors, once the file is there."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("degrees", "ranks"), [({"tp": 2, "dp": 2}, "2-3"), ({"tp": 2, "pp": 2}, "2-3")]
)
def test_no_token_comes_from_a_step_in_which_a_group_without_rank_0_broke(
    degrees: dict[str, int], ranks: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, file = even_checkpoint("llama", tmp_path), tmp_path / "broken"
    body = LATE.replace("RANKS", ranks).replace("FILE", str(file))
    PluginSpace(tmp_path / "plugins", monkeypatch).install(
        "late", body, slots='communicator = "1.0"'
    )
    model = PlainModel(path, max_context_tokens=256)
    params = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    with rank_llm(
        path, plugins="late,reference", pins=("communicator=late/late",), **degrees
    ) as engine:
        record = Record(engine.engine.executor, lambda: file.touch())
        with pytest.raises(RankFailure, match=r"rank [23] \(pid .*the link broke"):
            engine.generate(PROMPTS[:2], params)
        assert time.monotonic() - record.broke_s < 60.0
    assert len(record.tokens) == 2
    for prompt, found in zip(PROMPTS, record.tokens.values(), strict=False):
        answer = model.answer(prompt, NUM_TOKENS)
        assert BREAK_AFTER < len(found) < NUM_TOKENS
        assert list(answer.tokens[: len(found)]) == found
        assert len(found) <= answer.num_sure


class Record:
    """What a leading executor gives, by request, until something breaks in a step."""

    def __init__(self, executor: Any, break_it: Callable[[], None]) -> None:
        self.tokens: dict[int, list[int]] = {}
        self.broke_s = 0.0
        self._rows: list[list[int]] = []
        self._break = break_it
        self._launch, self._collect = executor.launch, executor.collect
        executor.launch, executor.collect = self.launch, self.collect

    def launch(self, plan: Any) -> None:
        """Note whose rows a step has."""
        self._rows.append(plan.request_ids.tolist())
        self._launch(plan)

    def collect(self) -> Any:
        """Note what each got."""
        result = self._collect()
        for request, token in zip(self._rows.pop(0), result.tokens.tolist(), strict=True):
            if token >= 0:
                self.tokens.setdefault(request, []).append(token)
        shortest = min(map(len, self.tokens.values()), default=0)
        if len(self.tokens) == 2 and shortest > BREAK_AFTER and not self.broke_s:
            self.broke_s = time.monotonic()
            self._break()
        return result
