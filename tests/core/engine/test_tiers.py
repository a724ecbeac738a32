"""Prompts whose blocks left the device come back from host memory or a store, with equal answers.

The scripted model computes the next token from all tokens before it through its caches, so a wrong
byte of a block that came back changes the answer.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.support.engines import TEST_SETTINGS
from tests.support.scripted import write_scripted_model

from tokenspeed import LLM, SamplingParams
from tokenspeed.errors import CapabilityError, CapacityError, ConfigError
from tokenspeed.executor.transfers import TierTransfers
from tokenspeed_sdk import Faults
from tokenspeed_sdk.testkit.faulty_store import FaultyStore

GREEDY = SamplingParams(temperature=0.0, max_tokens=6)
FULL: dict[str, Any] = {}
HYBRID = {"window": 24, "state_layers": 2}
SHAPES = pytest.mark.parametrize("shape", [FULL, HYBRID], ids=["full", "hybrid"])


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


@pytest.fixture(scope="module", params=[FULL, HYBRID], ids=["full", "hybrid"])
def case(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[list[int]], list[tuple[int, ...]]]:
    """A model, prompts, and the answers of an engine that reuses nothing."""
    model = make_model(tmp_path_factory.mktemp("tiers"), request.param)
    prompts = prompts_of(8)
    with make_llm(model, prefix_cache=False, host_kv_gib=0.0) as llm:
        return model, prompts, [answer(llm, prompt)[0] for prompt in prompts]


@pytest.mark.parametrize("kv_write", ["on_eviction", "on_commit"])
def test_what_was_evicted_comes_back_from_the_host(
    case: tuple[Path, list[list[int]], list[tuple[int, ...]]], kv_write: str
) -> None:
    model, prompts, expected = case
    with make_llm(model, kv_write=kv_write) as llm:
        first = [answer(llm, prompt) for prompt in prompts]
        again = [answer(llm, prompt) for prompt in prompts]
        stats = stats_of(llm)
        llm.engine.scheduler.check_invariants()
    assert [tokens for tokens, _ in first] == expected
    assert [cached for _, cached in first] == [0] * len(prompts)
    assert [tokens for tokens, _ in again] == expected
    assert min(cached for _, cached in again) >= 144, "all but the last block at least"
    assert stats["loads"] >= len(prompts) - 2
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
def test_a_store_serves_what_the_host_forgot(
    case: tuple[Path, list[list[int]], list[tuple[int, ...]]], name: str
) -> None:
    model, prompts, expected = case
    with make_llm(model, kv_store=name, host_kv_gib=0.0002) as llm:
        for prompt in prompts:
            answer(llm, prompt)
        again = [answer(llm, prompt) for prompt in prompts]
        stats = stats_of(llm)
    assert [tokens for tokens, _ in again] == expected
    assert stats["store_gets"] > 0
    assert sum(cached for _, cached in again) >= 100 * len(prompts)


def test_a_restart_finds_the_records_of_a_disk_again(
    case: tuple[Path, list[list[int]], list[tuple[int, ...]]], tmp_path: Path
) -> None:
    model, prompts, expected = case
    settings: dict[str, Any] = {"kv_store": "disk", "kv_store_folder": str(tmp_path / "kv")}
    with make_llm(model, **settings) as llm:
        for prompt in prompts:
            answer(llm, prompt)
    with make_llm(model, **settings) as llm:
        again = [answer(llm, prompt) for prompt in prompts]
    assert [tokens for tokens, _ in again] == expected
    assert min(cached for _, cached in again) >= 144
    with make_llm(model, **settings, block_tokens=32) as llm:
        assert stats_of(llm)["store_keys"] == 0, "bytes of another geometry are another cache"


def test_a_damaged_record_is_computed_again(
    case: tuple[Path, list[list[int]], list[tuple[int, ...]]], tmp_path: Path
) -> None:
    model, prompts, expected = case
    settings: dict[str, Any] = {"kv_store": "disk", "kv_store_folder": str(tmp_path / "kv")}
    with make_llm(model, **settings) as llm:
        for prompt in prompts:
            answer(llm, prompt)
    files = sorted((tmp_path / "kv").glob("*/??/*"))
    for path in files[::3]:
        data = bytearray(path.read_bytes())
        data[-5] ^= 1
        path.write_bytes(data)
    with make_llm(model, **settings) as llm:
        again = [answer(llm, prompt) for prompt in prompts]
        stats = stats_of(llm)
        assert [answer(llm, prompt)[0] for prompt in prompts] == expected
    assert [tokens for tokens, _ in again] == expected
    assert stats["store_gets_failed"] > 0
    assert 0 < sum(cached for _, cached in again) < 144 * len(prompts)


def test_answers_are_right_whatever_fails_or_is_late(
    case: tuple[Path, list[list[int]], list[tuple[int, ...]]],
) -> None:
    model, prompts, expected = case
    with make_llm(model, kv_store="memory", kv_write="on_commit", host_kv_gib=0.0003) as llm:
        spoil(llm)
        for _ in range(4):
            outputs = llm.generate(prompts, GREEDY)
            assert [output.token_ids for output in outputs] == expected
        stats = stats_of(llm)
        llm.engine.scheduler.check_invariants()
    assert stats["loads"] > 0
    assert stats["host_writes_failed"] > 0
    assert stats["tier_loads_failed"] > 0


def spoil(llm: LLM) -> None:
    """Let transfers and store calls fail, come late or damaged."""
    transfers = llm.engine.transfers
    assert isinstance(transfers, TierTransfers)
    transfers._faults = Faults(3, fail_share=0.1, max_delay_polls=3)
    assert transfers._store is not None
    faults = Faults(4, fail_share=0.1, corrupt_share=0.1, max_delay_polls=3)
    transfers._store = FaultyStore(transfers._store, faults)


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
