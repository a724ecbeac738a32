"""The device's workloads, small: each gives every figure that is compared, of the right size."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from benchmarks.device.driver import Driver, Run, steady_tokens_per_s, write_model
from benchmarks.device.figures import FIGURES, OF_MODEL
from benchmarks.device.workloads import Lengths, agents, second_turn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SMALL = Lengths(1024)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    folder: Path = tmp_path_factory.mktemp("device") / "m"
    write_model("qwen3-8b", folder, scale=512, num_hidden_layers=1)
    driver = Driver(folder, plugins="sdk,reference", dtype="float32", kv_gib=0.02, block_tokens=16)
    yield driver
    driver.close()


def test_sessions_on_one_prefix_reuse_it(driver: Driver) -> None:
    figures = agents(driver, SMALL)
    compared = [name for name in FIGURES["qwen3-8b"] if name.startswith("agents")]
    assert sorted(figures) == sorted(compared)
    assert figures["agents, one prefix: prompt tokens from the cache"] > 0.6
    assert figures["agents, 16 prefixes: prompt tokens from the cache"] > 0.4


def test_a_second_turn_reads_its_first_from_the_cache(driver: Driver) -> None:
    figures = second_turn(driver, SMALL)
    assert set(figures) <= set(FIGURES["qwen3-next-12l"])
    assert min(figures.values()) > 0


def test_every_model_has_figures_and_workloads() -> None:
    assert FIGURES.keys() == OF_MODEL.keys()


def test_the_steady_rate_is_of_the_time_in_which_all_decode(driver: Driver) -> None:
    first, second = Run(driver.prompt(1)), Run(driver.prompt(1))
    first.arrivals = [(0.0, 1), (1.0, 1), (2.0, 1), (3.0, 1)]
    second.arrivals = [(1.0, 1), (2.0, 1), (3.0, 1), (4.0, 1)]
    assert steady_tokens_per_s([first, second]) == 2.0
    second.arrivals = [(3.5, 1), (4.0, 1)]
    with pytest.raises(ValueError, match="never decoded all at once"):
        steady_tokens_per_s([first, second])
