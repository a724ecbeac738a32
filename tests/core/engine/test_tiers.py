"""Prompts whose blocks left the device come back from host memory or a store, with equal answers.

The scripted model computes the next token from all tokens before it through its caches, so a wrong
byte of a block that came back changes the answer.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.engines import TEST_SETTINGS
from tests.support.scripted import write_scripted_model
from tests.support.served_checkpoints import spoil

from tokenspeed import LLM, SamplingParams
from tokenspeed.errors import CapabilityError, CapacityError, ConfigError
from tokenspeed.executor.transfers import TierTransfers
from tokenspeed_sdk import StoreDone, StoreFacts

GREEDY = SamplingParams(temperature=0.0, max_tokens=6)
FULL: dict[str, Any] = {}
HYBRID = {"window": 24, "state_layers": 2}


def make_llm(model: Path, **settings: Any) -> LLM:
    """An engine whose device holds about two of the prompts below, and its host all of them."""
    small = {"kv_gib": 0.0001, "host_kv_gib": 0.01, "max_context_tokens": 200}
    return LLM(str(model), **{**TEST_SETTINGS, **small, **settings})


def make_model(folder: Path, shape: dict[str, Any]) -> Path:
    return write_scripted_model(folder / "model", mode="hash", **shape)


def prompts_of(count: int, *, length: int = 150, seed: int = 5) -> list[list[int]]:
    draw = random.Random(seed)
    return [[draw.randrange(94) for _ in range(length)] for _ in range(count)]


def answer(llm: LLM, prompt: list[int]) -> tuple[tuple[int, ...], int]:
    (output,) = llm.generate([prompt], GREEDY)
    return output.token_ids, output.cached_tokens


def stats_of(llm: LLM) -> dict[str, int]:
    return dict(llm.engine.scheduler.stats())


@dataclass(frozen=True)
class Case:
    """A model, first and second turns, and their answers by an engine that reuses nothing."""

    model: Path
    prompts: list[list[int]]
    turns: list[list[int]]
    answers: list[tuple[int, ...]]
    second_answers: list[tuple[int, ...]]

    def ask_second(self, llm: LLM) -> list[int]:
        """Check the answers of the second turns; return how much of each was cached."""
        outputs = [answer(llm, turn) for turn in self.turns]
        assert [tokens for tokens, _ in outputs] == self.second_answers
        return [cached for _, cached in outputs]

    def ask_first(self, llm: LLM) -> None:
        """Check the answers of the first turns."""
        assert [answer(llm, prompt)[0] for prompt in self.prompts] == self.answers


@pytest.fixture(scope="module", params=[FULL, HYBRID], ids=["full", "hybrid"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    model = make_model(tmp_path_factory.mktemp("tiers"), request.param)
    prompts = prompts_of(8)
    turns = [prompt + tail for prompt, tail in zip(prompts, prompts_of(8, length=12, seed=6),
                                                   strict=True)]  # fmt: skip
    with make_llm(model, prefix_cache=False, host_kv_gib=0.0) as llm:
        answers = [answer(llm, prompt)[0] for prompt in prompts]
        return Case(model, prompts, turns, answers, [answer(llm, turn)[0] for turn in turns])


@pytest.mark.parametrize("kv_write", ["on_eviction", "on_commit"])
def test_what_was_evicted_comes_back_from_the_host(case: Case, kv_write: str) -> None:
    with make_llm(case.model, kv_write=kv_write) as llm:
        case.ask_first(llm)
        assert stats_of(llm)["loads"] == 0
        cached = case.ask_second(llm)
        stats = stats_of(llm)
        llm.engine.scheduler.check_invariants()
    assert min(cached) >= 144, "all but the last block at least"
    assert stats["loads"] >= len(case.prompts) - 2
    assert stats["loads_failed"] == 0


def test_selective_writing_copies_what_was_reused(tmp_path: Path) -> None:
    model, prompts = make_model(tmp_path, FULL), prompts_of(8)
    with make_llm(model, kv_write="selective", kv_write_min_reuse=1) as llm:
        expected = answer(llm, prompts[0])[0]
        answer(llm, prompts[0])
        for prompt in prompts[1:]:
            answer(llm, prompt)
        assert answer(llm, prompts[1])[1] == 0, "used once, evicted, gone"
        assert answer(llm, prompts[0]) == (expected, 144)


@pytest.mark.parametrize("name", ["memory", "reference/memory"])
def test_a_store_serves_what_the_host_forgot(case: Case, name: str) -> None:
    with make_llm(case.model, kv_store=name, host_kv_gib=0.0001) as llm:
        case.ask_first(llm)
        cached = case.ask_second(llm)
        stats = stats_of(llm)
    assert stats["host_evictions"] > 0
    assert stats["store_gets"] > 0
    assert sum(cached) >= 100 * len(cached)


def test_a_restart_finds_the_records_of_a_disk_again(case: Case, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"kv_store": "disk", "kv_store_folder": str(tmp_path / "kv")}
    with make_llm(case.model, **settings) as llm:
        case.ask_first(llm)
    with make_llm(case.model, **settings) as llm:
        assert min(case.ask_second(llm)) >= 144
    with make_llm(case.model, **settings, block_tokens=32) as llm:
        assert stats_of(llm)["store_keys"] == 0, "bytes of another geometry are another cache"


def test_a_damaged_record_is_computed_again(case: Case, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"kv_store": "disk", "kv_store_folder": str(tmp_path / "kv")}
    with make_llm(case.model, **settings) as llm:
        case.ask_first(llm)
    files = sorted((tmp_path / "kv").glob("*/??/*"))
    for path in files[::9]:
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
    with make_llm(case.model, **settings) as llm:
        cached = case.ask_second(llm)
        stats = stats_of(llm)
        llm.engine.scheduler.check_invariants()
    assert stats["store_gets_failed"] > 0
    assert 0 < sum(cached) < 144 * len(cached)


def test_answers_are_right_whatever_fails_or_is_late(case: Case) -> None:
    with make_llm(case.model, kv_store="memory", kv_write="on_commit", host_kv_gib=0.0002) as llm:
        spoil(llm)
        for _ in range(3):
            for prompts, answers in (
                (case.prompts, case.answers),
                (case.turns, case.second_answers),
            ):
                outputs = llm.generate(prompts, GREEDY)
                assert [output.token_ids for output in outputs] == answers
        stats = stats_of(llm)
        llm.engine.scheduler.check_invariants()
    assert stats["loads"] > 0
    assert stats["host_writes_failed"] > 0
    assert stats["tier_loads_failed"] > 0


class ForgetfulStore:
    """A store whose thread works right after each call of `poll` or `take_lost`: whatever was put
    by then is written and, as there is no room, dropped again."""

    facts = StoreFacts(durable=False, capacity_bytes=0)

    def __init__(self) -> None:
        self._queued: list[tuple[int, bytes]] = []
        self._done: list[StoreDone] = []
        self._lost: list[bytes] = []
        self._num_calls = 0

    def put(self, key: bytes, tag: bytes, data: memoryview) -> int:
        self._num_calls += 1
        self._queued.append((self._num_calls, key))
        return self._num_calls

    def get(self, key: bytes, tag: bytes, into: memoryview) -> int:
        self._num_calls += 1
        self._done.append(StoreDone(self._num_calls, ok=False))
        return self._num_calls

    def poll(self) -> list[StoreDone]:
        done, self._done = self._done, []
        self._work()
        return done

    def keys(self) -> list[bytes]:
        return []

    def take_lost(self) -> list[bytes]:
        lost, self._lost = self._lost, []
        self._work()
        return lost

    def close(self) -> None:
        pass

    def _work(self) -> None:
        for ticket, key in self._queued:
            self._done.append(StoreDone(ticket, ok=True))
            self._lost.append(key)
        self._queued.clear()


def test_a_record_that_was_dropped_before_its_write_was_reported_does_not_count(
    case: Case,
) -> None:
    with make_llm(case.model, kv_store="memory", host_kv_gib=0.0002) as llm:
        transfers = llm.engine.transfers
        assert isinstance(transfers, TierTransfers)
        transfers._store = ForgetfulStore()
        case.ask_first(llm)
        llm._loop.flush()
        llm._loop.turn(0)
        stats = stats_of(llm)
    assert stats["store_puts"] > 0
    assert stats["store_puts_failed"] == 0
    assert stats["store_keys"] == 0


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"kv_store": "memory", "host_kv_gib": 0.0}, ConfigError, "set host_kv_gib"),
        ({"prefix_cache": False}, ConfigError, "prefix_cache is off"),
        ({"kv_store": "tape"}, CapabilityError, "reference/disk, reference/memory"),
        ({"host_kv_gib": 1e-9}, CapacityError, "2 or more are needed"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(
    tmp_path: Path, settings: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        make_llm(make_model(tmp_path, FULL), **settings)
