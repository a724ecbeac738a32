"""The engine and its speculator: what it is told, what its drafts are for, when it is dropped."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from tests.support.engines import TEST_SETTINGS
from tests.support.scripted import PRINTABLE_TOKENS, write_scripted_model

from tokenspeed import LLM, SamplingParams
from tokenspeed.contracts.speculator import Draft, SpeculatorFacts
from tokenspeed.engine.drafting import MAX_FAILURES, Drafting
from tokenspeed.engine.service_choices import check_speculator
from tokenspeed.errors import CapabilityError, CapacityError, ConfigError, PluginError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

NOTHING = np.zeros(0, dtype=np.int32)


class Recorder:
    """A speculator that notes its calls and returns what it was given."""

    def __init__(self, *, observes: bool = False) -> None:
        self.facts = SpeculatorFacts(num_grades=2, observes=observes)
        self.calls: list[tuple[Any, ...]] = []
        self.drafts: Any = {}
        self.fails_in = ""
        self.error: type[BaseException] = ValueError

    def _note(self, *call: Any) -> None:
        self.calls.append(call)
        if call[0] == self.fails_in:
            raise self.error("out of ideas")

    def start(self, request_id: int, token_ids: Any) -> None:
        """Note it."""
        self._note("start", request_id, token_ids.tolist())

    def extend(self, request_id: int, token_ids: Sequence[int]) -> None:
        """Note it."""
        self._note("extend", request_id, list(token_ids))

    def propose(self, wanted: Mapping[int, int]) -> Any:
        """Note it."""
        self._note("propose", dict(wanted))
        return self.drafts

    def end(self, request_id: int) -> None:
        """Note it."""
        self._note("end", request_id)

    def observe(self, request_id: int, num_drafts: int, num_accepted: int) -> None:
        """Note it."""
        self._note("observe", request_id, num_drafts, num_accepted)


class Bench:
    """Drafting over a recorder, and what the scheduler was proposed."""

    def __init__(self, speculator: Any, *, adapts: bool = False, max_step_tokens: int = 64) -> None:
        self.proposed: list[tuple[int, list[int]]] = []
        self.paused: list[int] = []
        scheduler: Any = SimpleNamespace(propose=self._propose)
        self.drafting = Drafting(
            speculator, "acme/guess", scheduler,
            max_drafts=4, max_step_tokens=max_step_tokens, adapts=adapts,
        )  # fmt: skip

    def _propose(self, key: int, ids: Any) -> None:
        if len(ids):
            self.proposed.append((key, ids.tolist()))
        else:
            self.paused.append(key)

    def add(self, key: int, *prompt: int) -> None:
        self.drafting.add(key, np.array(prompt, dtype=np.int32), NOTHING)

    def commit(
        self,
        new: Mapping[int, Sequence[int]],
        *,
        ended: Sequence[int] = (),
        drafts: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        """Commit a step.

        Args:
            drafts: key -> drafts of its row, and how many were right.
        """
        rows = drafts or {}
        plan: Any = SimpleNamespace(
            num_rows=len(new), num_decode_rows=len(new), num_tokens=len(new),
            request_ids=np.array(list(new)),
            num_drafts=np.array([rows.get(key, (0, 0))[0] for key in new]),
        )  # fmt: skip
        accepted = np.array([rows.get(key, (0, 0))[1] for key in new]) if rows else None
        entries = [(key, tuple(run), int(key in ended), -1, -1) for key, run in new.items()]
        committed: Any = SimpleNamespace(entries=lambda: entries)
        self.drafting.committed(plan, SimpleNamespace(accepted=accepted), committed, 0.01)  # type: ignore[arg-type]


def test_a_request_is_told_from_its_first_token_on_and_asked_after_each_step() -> None:
    speculator = Recorder(observes=True)
    bench = Bench(speculator)
    bench.add(7, 1, 2, 3)
    assert speculator.calls == [], "a request in the queue costs nothing"
    speculator.drafts = {7: Draft([5, 6], 1)}
    bench.commit({7: [4]})
    bench.commit({7: [5, 9]}, drafts={7: (2, 1)})
    bench.drafting.forget(7)
    assert speculator.calls == [
        ("start", 7, [1, 2, 3, 4]),
        ("propose", {7: 4}),
        ("observe", 7, 2, 1),
        ("extend", 7, [5, 9]),
        ("propose", {7: 4}),
        ("end", 7),
    ]
    assert bench.proposed == [(7, [5, 6])] * 2


def test_a_resumed_request_starts_with_what_it_had() -> None:
    speculator = Recorder()
    bench = Bench(speculator)
    bench.drafting.add(1, np.array([1, 2], np.int32), np.array([3], np.int32))
    bench.commit({1: [4]})
    assert speculator.calls[0] == ("start", 1, [1, 2, 3, 4])


def test_what_ends_is_not_asked_for_and_never_started_for_its_last_token() -> None:
    speculator = Recorder()
    bench = Bench(speculator)
    bench.add(1, 5)
    bench.commit({1: [6], 2: [7]}, ended=[1])
    bench.drafting.forget(1)
    assert speculator.calls == []


def test_drafts_leave_room_for_prompts_in_a_step() -> None:
    speculator = Recorder()
    bench = Bench(speculator, max_step_tokens=24)
    for key in (1, 2, 3):
        bench.add(key, 5)
    speculator.drafts = {key: Draft([9, 9, 9, 9]) for key in (1, 2, 3)}
    bench.commit({1: [1], 2: [1], 3: [1]})
    assert [len(ids) for _, ids in bench.proposed] == [4, 2]


def test_drafts_that_were_wrong_are_verified_no_more_and_those_that_became_right_again() -> None:
    speculator = Recorder()
    bench = Bench(speculator, adapts=True)
    bench.add(1, 5)
    speculator.drafts = {1: Draft([9, 9, 9, 9])}
    for _ in range(30):
        bench.commit({1: [1]})
    assert len(bench.proposed) < 12
    assert bench.paused == [1], "said once, then it runs ahead"
    before = len(bench.proposed)
    for _ in range(30):
        bench.commit({1: [9]})
    assert len(bench.proposed) > before
    assert bench.proposed[-1] == (1, [9, 9, 9, 9])


WRONG = [
    {1: Draft([1] * 5)},
    {1: Draft([-1])},
    {1: Draft([1 << 31])},
    {1: Draft([1], grade=2)},
    {2: Draft([1])},
    {1: [1, 2]},
    None,
]


@pytest.mark.parametrize("drafts", WRONG, ids=repr)
def test_what_are_no_drafts_counts_as_a_failure_and_is_not_used(drafts: Any) -> None:
    speculator = Recorder()
    speculator.drafts = drafts
    bench = Bench(speculator)
    bench.add(1, 5)
    bench.commit({1: [6]})
    assert bench.drafting.counts.failures == 1
    assert bench.proposed == []


@pytest.mark.parametrize("error", [ValueError, SystemExit])
@pytest.mark.parametrize("method", ["start", "extend", "propose", "observe"])
def test_one_that_keeps_failing_is_detached_and_told_of(
    method: str, error: type[BaseException]
) -> None:
    speculator = Recorder(observes=True)
    speculator.fails_in, speculator.error = method, error
    bench = Bench(speculator)
    for key in range(1, MAX_FAILURES + 3):
        bench.add(key, 5)
        bench.commit({key: [6]})
        bench.commit({key: [7]}, drafts={key: (1, 0)})
    assert bench.drafting.counts.failures == MAX_FAILURES
    assert bench.drafting.max_drafts == 0, "new requests run as without a speculator"
    assert bench.drafting.shown()["state"] == "detached"
    (alert,) = bench.drafting.alerts()
    assert alert["name"] == "speculator_detached"
    last = f"{error.__name__}('out of ideas')"
    assert f"acme/guess failed 3 times, at last with {last}" in alert["message"]
    calls = len(speculator.calls)
    bench.add(99, 5)
    bench.commit({99: [6]})
    bench.drafting.forget(99)
    assert len(speculator.calls) == calls


def test_a_failure_now_and_then_is_borne() -> None:
    speculator = Recorder()
    bench = Bench(speculator)
    bench.add(1, 5)
    speculator.fails_in = "propose"
    bench.commit({1: [6]})
    speculator.fails_in, speculator.drafts = "", {1: Draft([8])}
    bench.commit({1: [7]})
    assert bench.proposed == [(1, [8])]
    assert bench.drafting.alerts() == []


def make_llm(model: Path, **settings: Any) -> LLM:
    return LLM(str(model), **{**TEST_SETTINGS, **settings})


@pytest.mark.parametrize("depth", [0, 1])
def test_a_copying_answer_takes_fewer_steps_and_is_the_same(depth: int, tmp_path: Path) -> None:
    text = "def add(a, b): return a + b\n" * 4
    model = write_scripted_model(tmp_path, script=text)
    params = SamplingParams(temperature=0.0, max_tokens=100)
    with make_llm(model, speculator="ngram", max_drafts=6, depth=depth) as llm:
        (output,) = llm.generate([text], params)
        stats, state = llm.stats(), llm._loop.state()
    assert output.text == text[:100]
    assert stats.accepted_tokens > 60
    assert state["speculation"]["accepted"] == stats.accepted_tokens
    assert state["speculation"]["speculator"] == "reference/ngram"
    assert state["alerts"] == []
    prompt_steps = 2 + depth
    assert stats.steps - prompt_steps <= 100 - stats.accepted_tokens


def test_a_stop_string_inside_accepted_tokens_ends_the_answer_there(tmp_path: Path) -> None:
    text = "one two three four five six seven " * 3
    model = write_scripted_model(tmp_path, script=text)
    params = SamplingParams(
        temperature=0.0, max_tokens=90, stop=("r five",), min_tokens=50, logprobs=1
    )
    outputs = []
    for speculator in ("", "ngram"):
        with make_llm(model, speculator=speculator, max_drafts=7) as llm:
            (output,) = llm.generate([text], params)
            outputs.append((output.text, output.token_ids, output.finish_reason))
            assert output.logprobs is not None
            assert [entry.token_id for entry in output.logprobs] == list(output.token_ids)
            assert (llm.stats().accepted_tokens > 30) == bool(speculator)
    assert outputs[0] == outputs[1]
    assert outputs[0][0] == text[: text.index("r five", 50)]
    assert outputs[0][2] == "stop"


def test_an_answer_that_copies_nothing_verifies_almost_nothing(tmp_path: Path) -> None:
    model = write_scripted_model(tmp_path, mode="hash")
    params = SamplingParams(temperature=0.0, max_tokens=300)
    prompts = [[(seed * token) % PRINTABLE_TOKENS for token in range(60)] for seed in (3, 5, 7)]
    with make_llm(model, speculator="reference/ngram") as llm:
        llm.generate(prompts, params)
        stats = llm.stats()
    assert stats.drafted_tokens < 0.05 * stats.output_tokens


def test_without_a_speculator_nothing_is_said_of_one(tmp_path: Path) -> None:
    with make_llm(write_scripted_model(tmp_path, script="x")) as llm:
        assert llm._loop.state()["speculation"] is None


def test_unknown_speculators_and_models_that_take_no_drafts_back_are_refused(
    tmp_path: Path,
) -> None:
    model = write_scripted_model(tmp_path, mode="hash", state_layers=1, speculation="none")
    with pytest.raises(CapabilityError, match="loaded plugins have: reference/ngram"):
        make_llm(model, speculator="guess")
    with pytest.raises(ConfigError, match="cache group 'state' keeps a state and has speculation"):
        make_llm(model, speculator="ngram")
    kept = write_scripted_model(tmp_path / "kept", mode="hash", state_layers=1)
    with pytest.raises(CapacityError, match="max_drafts is 64, for each of which the model keeps"):
        make_llm(kept, speculator="ngram", max_drafts=64, kv_gib=1e-4)
    with make_llm(model) as llm:
        llm.generate([[1, 2, 3]], SamplingParams(temperature=0.0, max_tokens=3))


class NoFacts:
    """A speculator that declares nothing."""


class NoObserve:
    """Declares a method that it does not have."""

    facts = SpeculatorFacts(observes=True)
    start = extend = propose = end = print


@pytest.mark.parametrize(
    ("speculator", "words"),
    [(NoFacts(), "has no start, extend, propose, end"), (NoObserve(), "has no observe")],
)
def test_a_speculator_that_is_not_what_it_declares_is_refused_at_the_start(
    speculator: Any, words: str
) -> None:
    decision: Any = SimpleNamespace(winner=SimpleNamespace(pin="acme/guess"))
    with pytest.raises(PluginError, match=f"speculator acme/guess {words}"):
        check_speculator(speculator, decision)
    check_speculator(Recorder(observes=True), decision)
