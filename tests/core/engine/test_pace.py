"""Settings of pace and retention show in a real engine, turn by turn: a model of fixed speed."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any, Self

import pytest
from tests.support.engines import TEST_SETTINGS
from tests.support.scripted import write_scripted_model

from tokenspeed import SamplingParams
from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.build import build_engine
from tokenspeed.engine.channel import LocalChannel
from tokenspeed.engine.event_loop import EventLoop
from tokenspeed.engine.messages import Terms, TokensOut
from tokenspeed.engine.submits import make_submit

CHUNK = 32


class Bench:
    """One engine in this process; knows in which turn every request got its tokens."""

    def __init__(self, model: Path, **settings: Any) -> None:
        merged = {**TEST_SETTINGS, "max_step_tokens": CHUNK, **settings}
        self.engine = build_engine(EngineConfig(model=str(model), **merged))
        self._channel = LocalChannel()
        self._loop = EventLoop(self.engine, self._channel)
        self.turns = 0
        self.token_turns: dict[str, list[int]] = defaultdict(list)
        self.cached: dict[str, int] = {}
        self.ended: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.engine.close()

    def submit(self, name: str, prompt: list[int], max_tokens: int, **terms: Any) -> None:
        """Send a request; it arrives with the next turn."""
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        submit = make_submit(self.engine.info, prompt, params, name, epoch=1, terms=Terms(**terms))
        self._channel.inbox.append(submit)

    def turn(self) -> None:
        """Run one turn of the loop."""
        self._loop.turn(0)
        self.turns += 1
        while self._channel.outbox:
            message = self._channel.outbox.popleft()
            assert isinstance(message, TokensOut), message
            for delta in message.deltas:
                self.token_turns[delta.request_id] += [self.turns] * len(delta.tokens)
                if delta.cached_tokens >= 0:
                    self.cached[delta.request_id] = delta.cached_tokens
                if delta.finish_reason is not None:
                    self.ended.add(delta.request_id)

    def finish(self, name: str) -> None:
        """Run until a request has ended."""
        while name not in self.ended:
            assert self.turns < 2000
            self.turn()


def prompt_of(number: int, size: int) -> list[int]:
    """Return a prompt that shares no block with those of other numbers."""
    return [number % 90, number // 90, *(i * 7 % 90 for i in range(size - 2))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("pace") / "model")


@pytest.fixture(scope="module")
def slow_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("slow") / "model", step_ms=5)


def turns_of_a_long_prefill(model: Path, max_prefill_steps: int) -> int:
    """Return how long a prompt of 20 chunks takes when a short one comes in every turn."""
    with Bench(model, max_prefill_steps=max_prefill_steps) as bench:
        bench.submit("long", prompt_of(0, 20 * CHUNK), 1)
        while "long" not in bench.ended:
            assert bench.turns < 2000
            bench.submit(f"short {bench.turns}", prompt_of(1 + bench.turns, CHUNK), 1)
            bench.turn()
        return bench.turns


def test_a_long_prefill_is_displaced_for_max_prefill_steps_in_a_row(model: Path) -> None:
    """Short turns go first in all steps but every (k + 1)-th."""
    once, often = turns_of_a_long_prefill(model, 1), turns_of_a_long_prefill(model, 3)
    assert 36 <= once <= 44
    assert 70 <= often <= 86


def both_streams(model: Path, min_tps_per_user: float) -> tuple[list[int], list[int], int]:
    """Return the turns of two streams' tokens, and how often the floor was missed."""
    with Bench(model, min_tps_per_user=min_tps_per_user) as bench:
        bench.submit("first", prompt_of(1, 16), 30)
        for _ in range(10):
            bench.turn()
        bench.submit("second", prompt_of(2, 16), 5)
        bench.finish("first")
        bench.finish("second")
        violated = bench.engine.scheduler.stats()["tps_floor_violated"]
        return bench.token_turns["first"], bench.token_turns["second"], violated


def test_below_the_floor_nobody_else_is_admitted_and_it_is_counted(slow_model: Path) -> None:
    """A step takes 5 ms, so no stream can have 1,000 tokens a second, but 20 are easy."""
    first, second, violated = both_streams(slow_model, 20.0)
    assert second[0] < first[-1]
    assert violated == 0
    first, second, violated = both_streams(slow_model, 1000.0)
    assert second[0] > first[-1]
    assert violated > 0


@pytest.mark.parametrize(("retain_share", "cached"), [(0.0, 0), (0.5, 127)])
def test_a_kept_prefix_outlives_others_within_its_share(
    model: Path, retain_share: float, cached: int
) -> None:
    with Bench(model, retain_share=retain_share) as bench:
        num_blocks = bench.engine.scheduler.stats()["blocks_total"]
        bench.submit("kept", prompt_of(0, 128), 1, retain_s=60.0)
        bench.finish("kept")
        for number in range(1, 2 + num_blocks * 16 // 320):
            bench.submit(f"other {number}", prompt_of(number, 320), 1)
            bench.finish(f"other {number}")
        bench.submit("again", prompt_of(0, 128), 1)
        bench.finish("again")
        assert bench.cached["again"] == cached
