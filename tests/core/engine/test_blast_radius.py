"""A fault in one of 64 streams ends that stream, whichever call of a plugin it is planted in."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.engines import TEST_SETTINGS
from tests.support.scripted import ids_of, write_scripted_model

from tokenspeed import SamplingParams
from tokenspeed.config.schema import EngineConfig
from tokenspeed.engine.build import build_engine
from tokenspeed.engine.channel import LocalChannel
from tokenspeed.engine.event_loop import MAX_FAILED_STEPS, EventLoop
from tokenspeed.engine.messages import Delta, Refused, Terms, TokensOut
from tokenspeed.engine.requests import number_of
from tokenspeed.engine.submits import make_submit
from tokenspeed.errors import CapacityError, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STREAMS = 64
FAULTY = 17
NUM_TOKENS = 6
MARK = 160
"""Token of stream 0's prompt alone; the model says none of them."""


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
            make_submit(
                self.engine.info, prompt_of(index), params, f"{index}", epoch=1, terms=terms
            )
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
    """Return a prompt that begins as all do and ends with a token that no other has."""
    return [*ids_of("a prompt that is shared"), MARK + index]


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


def plant(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, is_its: Callable[..., bool]
) -> None:
    """Make a method raise in the calls that are made for the faulty stream too."""
    right = getattr(owner, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        if is_its(*args, **kwargs):
            raise ValueError(f"planted in {name}")
        return right(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)


def in_sampler(found: Streams, monkeypatch: pytest.MonkeyPatch) -> str:
    def is_its(logits_RV: Any, batch: Any) -> bool:
        return bool((batch.seeds_R == FAULTY).any())

    plant(monkeypatch, found.engine.executor._sampler._sampler, "sample", is_its)
    return "planted in sample"


def in_model(found: Streams, monkeypatch: pytest.MonkeyPatch) -> str:
    def is_its(token_ids_T: Any, context: Any) -> bool:
        return bool((token_ids_T == MARK + FAULTY).any())

    plant(monkeypatch, found.engine.executor._model, "forward", is_its)
    return "planted in forward"


def in_a_later_step(found: Streams, monkeypatch: pytest.MonkeyPatch) -> str:
    """It runs well for some steps, and then no more."""

    def is_its(logits_RV: Any, batch: Any) -> bool:
        return bool(((batch.seeds_R == FAULTY) & (batch.output_index_R >= 3)).any())

    plant(monkeypatch, found.engine.executor._sampler._sampler, "sample", is_its)
    return "planted in sample"


def ends_the_process(found: Streams, monkeypatch: pytest.MonkeyPatch) -> str:
    def sample(logits_RV: Any, batch: Any) -> Any:
        if bool((batch.seeds_R == FAULTY).any()):
            raise SystemExit("planted exit")
        return right(logits_RV, batch)

    sampler = found.engine.executor._sampler._sampler
    right = sampler.sample
    monkeypatch.setattr(sampler, "sample", sample)
    return "planted exit"


def in_policy(found: Streams, monkeypatch: pytest.MonkeyPatch) -> str:
    def is_its(arrival: Any) -> bool:
        return bool(arrival.session == number_of(f"s{FAULTY}"))

    plant(monkeypatch, found.engine.policy._policy, "keys", is_its)
    return f"policy {found.engine.policy.name} failed for this request: ValueError: planted in keys"


FATAL = (in_sampler, in_model, in_a_later_step, ends_the_process, in_policy)


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("fault", FATAL)
def test_63_of_64_streams_finish_right(
    fault: Callable[[Streams, pytest.MonkeyPatch], str],
    depth: int,
    model: Path,
    calm: dict[int, list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = streams(model, depth=depth)
    words = fault(found, monkeypatch)
    found.run()
    others = [index for index in range(STREAMS) if index != FAULTY]
    assert {found.tokens[index] == calm[index] for index in others} == {True}
    assert {found.reasons[index] for index in others} == {"length"}
    assert found.reasons[FAULTY] in ("error", "refused")
    assert words in found.errors[FAULTY]
    assert len(found.loop.requests) == 0
    assert found.loop.stats().blocks_used == 0
    found.engine.close()


def test_the_end_of_a_turn_that_a_policy_fails_to_note_ends_nothing(
    model: Path, calm: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = streams(model)
    plant(monkeypatch, found.engine.policy._policy, "turn_ended", lambda session, now_us: True)
    found.run()
    assert found.tokens == calm
    found.engine.close()


@pytest.mark.parametrize("call", ["start", "extend", "propose", "end"])
def test_a_speculator_that_fails_for_one_stream_changes_none(
    call: str, model: Path, calm: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = streams(model, speculator="ngram")
    speculator = found.engine.drafting._speculator
    plant(monkeypatch, speculator, call, lambda first, *rest: True)
    found.run()
    assert found.tokens == calm
    assert found.loop.stats().speculator_failures > 0
    found.engine.close()


@pytest.mark.parametrize("call", ["put", "get", "poll", "take_lost"])
def test_a_store_that_fails_changes_no_stream(
    call: str, model: Path, calm: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"kv_gib": 0.0004, "host_kv_gib": 0.0001, "kv_store": "memory", "kv_store_gib": 0.01}
    found = streams(model, max_context_tokens=64, **small)
    plant(monkeypatch, found.engine.store._store, call, lambda *rest: True)
    found.run()
    assert found.tokens == calm
    found.reasons.clear()
    found.tokens.clear()
    found.run()
    assert found.tokens == calm
    found.engine.close()


def test_a_request_that_fails_alone_again_and_again_does_not_end_the_engine(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = streams(model)
    words = in_sampler(found, monkeypatch)
    for _ in range(MAX_FAILED_STEPS - 1):
        found.submit(FAULTY)
        while FAULTY not in found.reasons:
            found.turn()
        assert words in found.errors[FAULTY]
        found.reasons.clear()
    found.submit(1)
    while 1 not in found.reasons:
        found.turn()
    assert found.reasons[1] == "length"
    found.engine.close()


def test_a_device_that_fails_with_the_step_ends_the_engine_at_once(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = streams(model)
    in_sampler(found, monkeypatch)
    monkeypatch.setattr(found.engine.executor, "is_device_well", lambda: False)
    found.submit(FAULTY)
    with pytest.raises(EngineError, match=r"1 steps in a row failed.*the device fails too"):
        found.turn()
    found.engine.close()


def test_a_suspect_that_finds_no_place_waits_for_one(
    model: Path, calm: dict[int, list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = streams(model)
    words = in_sampler(found, monkeypatch)
    right, calls = found.engine.executor.add_request, itertools.count(1)

    def add_request(*arguments: Any) -> None:
        if STREAMS < next(calls) < STREAMS + 10:
            raise CapacityError("the queue is full", retry_after_s=1)
        right(*arguments)

    monkeypatch.setattr(found.engine.executor, "add_request", add_request)
    found.run()
    others = [index for index in range(STREAMS) if index != FAULTY]
    assert {found.tokens[index] == calm[index] for index in others} == {True}
    assert words in found.errors[FAULTY]
    found.engine.close()
