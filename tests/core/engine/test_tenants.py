"""Tenants' figures in the engine: bytes and names over the scheduler's blocks and numbers."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.engines import TEST_SETTINGS, RunningEngine, tokens_of
from tests.support.schedulers import make_scheduler
from tests.support.scripted import write_scripted_model

from tokenspeed import LLM, SamplingParams
from tokenspeed.engine.frontend import Frontend
from tokenspeed.engine.messages import TenantFigures, Terms
from tokenspeed.engine.requests import number_of
from tokenspeed.engine.tenants import MAX_TENANTS, Tenants
from tokenspeed.errors import CapacityError, ConfigError, RequestError

BLOCK = 1000
FULL = {"name": "full"}


def make_tenants(**settings: Any) -> Tenants:
    """Make tenants of 64 blocks of 1,000 bytes."""
    return Tenants(make_scheduler(FULL, **settings), block_bytes=BLOCK)


def change(tenants: Tenants, name: str, floor: int | None, cap: int | None = None) -> list[int]:
    return tenants.change(name, TenantFigures(floor, cap), now_us=1)


def test_a_floor_is_rounded_up_to_blocks_and_a_cap_down() -> None:
    scheduler = make_scheduler(FULL)
    tenants = Tenants(scheduler, block_bytes=BLOCK)
    change(tenants, "a", 2001, 5999)
    [usage] = scheduler.tenants()
    assert (usage["tenant"], usage["floor_blocks"], usage["cap_blocks"]) == (number_of("a"), 3, 5)
    change(tenants, "a", 1500, 1500)
    [usage] = scheduler.tenants()
    assert (usage["floor_blocks"], usage["cap_blocks"]) == (1, 1), "a floor is never above the cap"


def test_states_tell_bytes_by_name_and_no_figures_end_the_listing() -> None:
    scheduler = make_scheduler(FULL)
    tenants = Tenants(scheduler, block_bytes=BLOCK)
    change(tenants, "b", None, 9000)
    change(tenants, "a", 3000)
    scheduler.submit(1, np.arange(40, dtype=np.int32), tenant=number_of("a"), now_us=2)
    scheduler.plan(now_us=2)
    first, second = tenants.states()
    assert (first.name, first.floor_bytes, first.cap_bytes) == ("a", 3000, None)
    assert (first.held_bytes, first.cached_bytes, first.running) == (3000, 0, 1)
    assert (second.name, second.cap_bytes, second.held_bytes) == ("b", 9000, 0)
    change(tenants, "a", 0)
    change(tenants, "b", None)
    assert tenants.states() == ()
    assert scheduler.tenants() == []


@pytest.mark.parametrize(
    ("name", "floor", "cap", "words"),
    [
        ("a", 5000, 4000, "cap_bytes is 4000; at least its floor of 5000"),
        ("a", None, 999, "one block of 1000 bytes"),
        ("a", 64_001, None, "floor_bytes is 64001, and the floors of others are 4000; the cache"),
        ("a", 60_001, None, "floors of others are 4000"),
        ("", 1, None, "0 characters"),
        ("x" * 65, 1, None, "65 characters"),
        ("a\nb", 1, None, "printable"),
    ],
)
def test_a_wrong_figure_is_refused_with_numbers(
    name: str, floor: int | None, cap: int | None, words: str
) -> None:
    tenants = make_tenants()
    change(tenants, "other", 4000)
    with pytest.raises(RequestError) as caught:
        change(tenants, name, floor, cap)
    assert words in str(caught.value)
    assert [state.name for state in tenants.states()] == ["other"]


def test_more_tenants_than_may_have_figures_are_refused() -> None:
    tenants = make_tenants()
    for number in range(MAX_TENANTS):
        change(tenants, f"t{number}", None, 5000)
    with pytest.raises(RequestError, match="number 65 with figures; at most 64"):
        change(tenants, "one", None, 5000)
    change(tenants, "t3", None)
    change(tenants, "one", None, 5000)


def test_a_model_whose_cache_is_not_counted_by_tenant_names_its_groups() -> None:
    tenants = Tenants(make_scheduler(), block_bytes=BLOCK, uncounted=("window", "state"))
    with pytest.raises(RequestError, match="keeps the cache groups window, state"):
        change(tenants, "a", 1)
    assert change(tenants, "a", None) == [], "nothing to keep is no figure"


def test_figures_outlive_their_engine(tmp_path: Path) -> None:
    first = make_tenants()
    change(first, "a", 2000)
    first.keep_in(tmp_path / "tenants", now_us=1)
    change(first, "a", 3000, 9000)
    change(first, "b", None, 7000)
    second = make_tenants()
    change(second, "a", 2000)
    change(second, "c", 1000)  # of the file of the start, and taken away since
    second.keep_in(tmp_path / "tenants", now_us=1)
    assert second.states() == first.states()


def test_a_start_with_figures_names_what_a_hybrid_model_keeps(tmp_path: Path) -> None:
    path = write_scripted_model(tmp_path / "model", window=20, state_layers=2)
    file = tmp_path / "tenants.toml"
    file.write_text("[tenants.a]\nfloor_mib = 0\n")
    with LLM(str(path), tenants=str(file), **TEST_SETTINGS):
        pass  # no figure at all
    file.write_text("[tenants.a]\ncap_mib = 1\n")
    with pytest.raises(ConfigError, match=r"tenants.toml': tenant 'a' .* groups window, state"):
        LLM(str(path), tenants=str(file), **TEST_SETTINGS)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_scripted_model(tmp_path / "model", step_ms=5, max_position_embeddings=2048)


def test_a_changed_cap_holds_at_once_and_after_a_crash(model: Path) -> None:
    params = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)
    figures = TenantFigures(None, 200_000)

    async def scenario(frontend: Frontend) -> None:
        assert await frontend.tenants() == ()
        stream = frontend.submit(list(range(5, 25)), params, terms=Terms(tenant="acme"))
        async for _ in stream:
            break
        with pytest.raises(RequestError, match="at least its floor of 9 and one block"):
            await frontend.change_tenant("acme", TenantFigures(9, 8))
        [state] = await frontend.change_tenant("acme", TenantFigures(None, 10_000))
        with pytest.raises(CapacityError, match=r"can never fit any more; .* 10000 bytes"):
            await tokens_of(stream)
        assert (state.name, state.cap_bytes, state.held_bytes) == ("acme", 10_000, 0)
        await frontend.change_tenant("acme", figures)
        epoch = frontend.epoch
        engine.kill()
        while frontend.epoch == epoch:
            await asyncio.sleep(0.05)
        [state] = await frontend.tenants()
        assert (state.name, state.floor_bytes, state.cap_bytes) == ("acme", None, 200_000)
        with pytest.raises(CapacityError, match="the cap of its tenant"):
            await tokens_of(frontend.submit([7] * 500, params, terms=Terms(tenant="acme")))

    with RunningEngine(model) as engine:
        engine.run(scenario)
