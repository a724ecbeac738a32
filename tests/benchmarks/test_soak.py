"""The soak, small: it ends as it says, and what is left behind or ends wrongly is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from benchmarks.device.driver import Driver, write_model
from benchmarks.device.soak import Soak
from benchmarks.device.soak_requests import POISON, Asked, Clients, SoakError

from tokenspeed.sampling.params import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LONGEST_TOKENS = 512


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute tiny tensors without waiting for helpers."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(num_threads)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(
        "qwen3-8b", tmp_path / "m", scale=64, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, vocab_size=512, nan_on_token=POISON,
    )  # fmt: skip


def open_driver(model: Path, *, kv_gib: float = 0.0008) -> Driver:
    return Driver(
        model, channel=Clients(), plugins="sdk,reference", dtype="float32", kv_gib=kv_gib,
        block_tokens=16, max_running=32, max_step_tokens=256, max_context_tokens=1024, depth=1,
        threads=1,
    )  # fmt: skip


@pytest.mark.parametrize("num_requests", [60, pytest.param(2000, marks=pytest.mark.slow)])
def test_mixed_requests_leave_nothing_behind(model: Path, num_requests: int) -> None:
    driver = open_driver(model)
    try:
        soak = Soak(driver, longest_tokens=LONGEST_TOKENS, dtype="float32")
        figures = soak.run(num_requests)
    finally:
        driver.close()
    assert figures["requests"] == num_requests
    assert figures["tokens compared"] > num_requests / 10
    assert {"abort", "length"} <= soak.reasons.keys()
    if num_requests == 2000:
        assert {"leave", "error", "stop"} <= soak.reasons.keys()
        assert figures["retractions"] > 20


def test_a_block_that_is_still_held_is_told(model: Path) -> None:
    driver = open_driver(model)
    try:
        soak = Soak(driver, longest_tokens=LONGEST_TOKENS, dtype="float32")
        params = SamplingParams(temperature=0.0, max_tokens=64, ignore_eos=True)
        soak.submit(Asked("forgotten", [20, 30, 40], params))
        driver.loop.turn(0)
        with pytest.raises(SoakError, match="1 blocks are held"):
            soak.check_idle()
    finally:
        driver.close()


def test_a_request_that_ends_otherwise_is_told() -> None:
    params = SamplingParams(temperature=0.0, max_tokens=4)
    asked = Asked("r", [20, 30], params, tokens=[40, 50, 60], reason="length")
    with pytest.raises(SoakError, match="after 3 of 4 tokens"):
        asked.check()
    asked.tokens.append(70)
    asked.check()
    asked.reason, asked.error = "error", "its logits were NaN"
    with pytest.raises(SoakError, match="poisoned: False"):
        asked.check()
    asked.prompt.append(POISON)
    asked.check()
