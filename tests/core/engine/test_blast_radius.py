"""A fault in one of 64 streams ends that stream, whichever call of a plugin it is planted in."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.engines import TEST_SETTINGS
from tests.support.scripted import ids_of, write_scripted_model

from tokenspeed import SamplingParams
from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.build import build_engine
from tokenspeed.engine.channel import LocalChannel
from tokenspeed.engine.event_loop import EventLoop
from tokenspeed.engine.messages import Delta, Refused, Terms, TokensOut
from tokenspeed.engine.submits import make_submit
from tokenspeed.errors import EngineError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

STREAMS = 64
FAULTY = 17
NUM_TOKENS = 6


@dataclass
class Streams:
    """64 streams in one engine, and what became of each."""

    engine: Any
    loop: EventLoop
    channel: LocalChannel
    tokens: dict[int, list[int]] = field(default_factory=dict)
    reasons: dict[int, str] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    num_turns: int = 0

    def submit(self, index: int, **fields: Any) -> None:
        """Send one; each has a prompt and a seed of its own."""
        params = SamplingParams(
            **{"seed": index, "max_tokens": NUM_TOKENS, "temperature": 0.0, **fields}
        )
        terms = Terms(session=f"s{index}", priority=index == FAULTY)
        self.channel.inbox.append(
            make_submit(self.engine.info, prompt_of(index), params, f"{index}", epoch=1, terms=terms)
        )

    def run(self) -> None:
        """Turn until every stream has ended."""
        for index in range(STREAMS):
            self.submit(index)
        while len(self.reasons) < STREAMS:
            self.turn()

    def turn(self) -> None:
        """Turn once and take what was sent."""
        self.loop.turn(0)
        self.num_turns += 1
        assert self.num_turns < 5000, f"{STREAMS - len(self.reasons)} streams wait for ever"
        while self.channel.outbox:
            message = self.channel.outbox.popleft()
            if isinstance(message, Refused):
                self._end(int(message.request_id), "refused", message.message)
            elif isinstance(message, TokensOut):
                for delta in message.deltas:
                    self._take(delta)

    def _take(self, delta: Delta) -> None:
        index = int(delta.request_id)
        self.tokens.setdefault(index, []).extend(delta.tokens)
        if delta.finish_reason is not None:
            self._end(index, delta.finish_reason, delta.error or "")

    def _end(self, index: int, reason: str, error: str) -> None:
        assert index not in self.reasons, f"stream {index} has ended twice"
        self.reasons[index], self.errors[index] = reason, error


def prompt_of(index: int) -> list[int]:
    """Return a prompt that begins as all do and ends like no other."""
    return [*ids_of("a prompt that is shared"), index, index // 2]


def streams(model: Path, **settings: Any) -> Streams:
    """Build an engine that holds all of them at once."""
    values = {**TEST_SETTINGS, "max_running": STREAMS, "max_step_tokens": 256, "kv_gib": 0.01}
    engine = build_engine(EngineConfig(model=str(model), **{**values, **settings}))
    channel = LocalChannel()
    return Streams(engine, EventLoop(engine, channel), channel)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("blast") / "hash")


@pytest.fixture(scope="module")
def calm(model: Path) -> dict[int, list[int]]:
    """What each stream says where nothing fails."""
    found = streams(model)
    found.run()
    assert set(found.reasons.values()) == {"length"}
    found.engine.close()
    return found.tokens


@pytest.fixture(params=[0, 1], ids=["depth 0", "depth 1"])
def faulty(model: Path, request: pytest.FixtureRequest) -> Iterator[Streams]:
    found = streams(model, depth=request.param)
    yield found
    found.engine.close()


def plant(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, is_its: Callable[..., bool]
) -> None:
    """Make a method raise in the calls that are made for the faulty stream."""
    right = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_its(*args, **kwargs):
            raise ValueError(f"planted in {name}")
        return right(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


def has_its_seed(logits_RV: Any, batch: Any) -> bool:
    return bool((batch.seeds_R == FAULTY).any())


def has_its_prompt(token_ids_T: Any, context: Any) -> bool:
    return bool((token_ids_T == 200 + FAULTY).any())


def of_its_session(arrival: Any) -> bool:
    from tokenspeed.engine.requests import number_of

    return bool(arrival.session == number_of(f"s{FAULTY}"))


def check(found: Streams, calm: dict[int, list[int]], words: str) -> None:
    """63 streams have said what they say where nothing fails, and one has failed by name."""
    others = [index for index in range(STREAMS) if index != FAULTY]
    assert {index: found.tokens[index] for index in others} == {
        index: calm[index] for index in others
    }
    assert {found.reasons[index] for index in others} == {"length"}
    assert found.reasons[FAULTY] in ("error", "refused")
    assert words in found.errors[FAULTY], found.errors[FAULTY]
    assert len(found.loop.requests) == 0


def test_a_sampler_that_fails_for_one_row_ends_one_stream(
    faulty: Streams, calm: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = faulty.engine.executor._sampler._sampler
    right = sampler.sample

    def sample(logits_RV: Any, batch: Any) -> Any:
        if batch.seeds_R is not None and bool((batch.seeds_R == FAULTY).any()):
            raise ValueError("planted in sample")
        return right(logits_RV, batch)

    monkeypatch.setattr(sampler, "sample", sample)
    faulty.run()
    check(faulty, calm, "planted in sample")
