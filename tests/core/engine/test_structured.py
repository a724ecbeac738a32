"""Answers in a language through the engine: faults end one, and waiting blocks nobody."""

from __future__ import annotations

import json
import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.support import grammars
from tests.support.engines import TEST_SETTINGS
from tests.support.grammars import CALLS, ListEngine, ListGrammar
from tests.support.scripted import IM_END, VOCAB_SIZE, ids_of, write_scripted_model

from tokenspeed import LLM, SamplingParams
from tokenspeed.config.schema import EngineConfig
from tokenspeed.contracts.grammar import GrammarSpec
from tokenspeed.engine.build import build_engine
from tokenspeed.engine.channel import LocalChannel
from tokenspeed.engine.event_loop import EventLoop
from tokenspeed.engine.messages import Abort, Delta, Refused, TokensOut
from tokenspeed.engine.submits import make_submit
from tokenspeed.errors import RequestError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tokenspeed.contracts.grammar import GrammarVocabulary

PLANTED: dict[str, Any] = {}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer", "maximum": 99}, "b": {"enum": ["x", "y"]}},
    "required": ["a", "b"],
}


def planted(vocabulary: GrammarVocabulary) -> ListEngine:
    """Return the engine of the test; what a grammar plugin's `load` does."""
    assert vocabulary.stop_token_ids == (IM_END,)
    engine: ListEngine = PLANTED["engine"]
    return engine


class Driven:
    """An engine and what it has sent."""

    def __init__(self, model: Path, **settings: Any) -> None:
        values = {**TEST_SETTINGS, "max_running": 64, "max_step_tokens": 128, "kv_gib": 0.01}
        self.engine = build_engine(EngineConfig(model=str(model), **{**values, **settings}))
        self.channel = LocalChannel()
        self.loop = EventLoop(self.engine, self.channel)
        self.deltas: dict[str, list[Delta]] = {}
        self.refused: dict[str, Refused] = {}

    def submit(self, name: str, grammar: GrammarSpec | None, **fields: Any) -> None:
        params = SamplingParams(**{"seed": 1, "max_tokens": 12, "grammar": grammar, **fields})
        self.channel.inbox.append(
            make_submit(self.engine.info, ids_of("hello"), params, name, epoch=1)
        )

    def run(self, *names: str) -> None:
        while any(name not in self.refused and not self.reason(name) for name in names):
            self.turn()

    def turn(self) -> None:
        self.loop.turn(0)
        while self.channel.outbox:
            message = self.channel.outbox.popleft()
            if isinstance(message, Refused):
                self.refused[message.request_id] = message
            elif isinstance(message, TokensOut):
                for delta in message.deltas:
                    self.deltas.setdefault(delta.request_id, []).append(delta)

    def tokens(self, name: str) -> list[int]:
        return [token for delta in self.deltas[name] for token in delta.tokens]

    def reason(self, name: str) -> str | None:
        return self.deltas[name][-1].finish_reason if name in self.deltas else None


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_scripted_model(tmp_path_factory.mktemp("structured") / "hash")


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Offer the planted engine in the place of the core's."""
    monkeypatch.setattr(grammars, "planted", planted, raising=False)
    monkeypatch.setattr("tokenspeed.builtin.XGRAMMAR", "tests.support.grammars:planted")
    yield
    PLANTED.clear()


@pytest.mark.parametrize("call", [call for call in CALLS if call != "rollback"])
@pytest.mark.usefixtures("plant")
def test_a_fault_in_a_call_of_the_plugin_ends_one_of_64_streams(call: str, model: Path) -> None:
    texts = [f"{index} {index + 1} {index // 2} 9" for index in range(64)]
    faulty = 17
    PLANTED["engine"] = ListEngine(VOCAB_SIZE, IM_END, {texts[faulty]: call})
    driven = Driven(model)
    names = [f"r{index}" for index in range(64)]
    for name, text in zip(names, texts, strict=True):
        driven.submit(name, GrammarSpec("regex", text))
    driven.run(*names)
    for index, name in enumerate(names):
        if index != faulty:
            wanted = [*map(int, texts[index].split()), IM_END]
            assert (driven.tokens(name), driven.reason(name)) == (wanted, "stop")
    name = names[faulty]
    said = driven.refused[name].message if name in driven.refused else ""
    said = said or driven.deltas[name][-1].error or ""
    assert f"planted in {call}" in said
    driven.engine.close()


class WaitingEngine(ListEngine):
    """Compiles when it is let."""

    may_go_on = threading.Event()

    def compile(self, spec: GrammarSpec) -> ListGrammar:
        """Wait, then compile."""
        if spec.text == "1 2":
            assert self.may_go_on.wait(60)
        return super().compile(spec)


@pytest.mark.usefixtures("plant")
def test_a_request_waits_for_its_grammar_and_others_do_not(model: Path) -> None:
    PLANTED["engine"] = WaitingEngine(VOCAB_SIZE, IM_END)
    driven = Driven(model)
    driven.submit("waits", GrammarSpec("regex", "1 2"))
    driven.submit("gone", GrammarSpec("regex", "1 2"))
    driven.submit("plain", None)
    driven.submit("other", GrammarSpec("regex", "3"))
    driven.run("plain", "other")
    assert driven.loop.waits_for_grammars()
    assert driven.loop.stats().waiting == 2
    driven.submit("waits", None)
    driven.run("waits")
    assert "is in use" in driven.refused.pop("waits").message
    driven.channel.inbox.append(Abort("gone"))
    driven.turn()
    assert driven.loop.stats().waiting == 1
    WaitingEngine.may_go_on.set()
    driven.run("waits")
    assert driven.tokens("waits") == [1, 2, IM_END]
    assert "gone" not in driven.deltas
    driven.engine.close()


class SlowEngine(ListEngine):
    """Compiles as long as a library takes that is imported first."""

    def compile(self, spec: GrammarSpec) -> ListGrammar:
        """Take a second, without the processor."""
        time.sleep(1.0)
        return super().compile(spec)


@pytest.mark.usefixtures("plant")
def test_who_has_nothing_to_run_rests_while_a_grammar_is_compiled(model: Path) -> None:
    PLANTED["engine"] = SlowEngine(VOCAB_SIZE, IM_END)
    with LLM(str(model), **{**TEST_SETTINGS, "kv_gib": 0.01}) as llm:
        llm.generate("x", SamplingParams(max_tokens=1))
        before_s = time.thread_time()
        params = SamplingParams(max_tokens=4, grammar=GrammarSpec("regex", "1 2"))
        assert llm.generate("x", params)[0].token_ids == (1, 2, IM_END)
        assert time.thread_time() - before_s < 0.5


@pytest.mark.usefixtures("plant")
def test_min_tokens_bans_the_end_only_where_something_else_may_come(model: Path) -> None:
    PLANTED["engine"] = ListEngine(VOCAB_SIZE, IM_END)
    driven = Driven(model)
    driven.submit("short", GrammarSpec("regex", "1 2"), min_tokens=8)
    driven.run("short")
    assert (driven.tokens("short"), driven.reason("short")) == ([1, 2, IM_END], "stop")
    driven.engine.close()


def test_an_answer_that_is_resumed_goes_on_in_its_language(model: Path) -> None:
    driven = Driven(model)
    grammar = GrammarSpec("json_schema", json.dumps(SCHEMA), closed=True)
    driven.submit("whole", grammar, max_tokens=60)
    driven.run("whole")
    whole = driven.tokens("whole")
    params = SamplingParams(seed=1, max_tokens=60, grammar=grammar)
    again = make_submit(driven.engine.info, ids_of("hello"), params, "again", epoch=1)
    half = np.array(whole[: len(whole) // 2], dtype="<i4")
    driven.channel.inbox.append(replace(again, output_ids=half.tobytes()))
    driven.run("again")
    assert [*half.tolist(), *driven.tokens("again")] == whole
    driven.engine.close()


def test_answers_of_many_kinds_are_in_their_languages_with_penalties_and_logprobs(
    model: Path,
) -> None:
    specs = [
        GrammarSpec("json_schema", json.dumps(SCHEMA), closed=True),
        GrammarSpec("regex", "[a-f]{3,9}"),
        GrammarSpec("choice", '["yes", "no", "\\u00e9\\"\\n"]'),
        GrammarSpec("ebnf", 'root ::= "(" [0-9]+ ")"'),
        None,
    ]
    params = [
        SamplingParams(
            temperature=1.0,
            seed=seed,
            max_tokens=80,
            grammar=spec,
            logprobs=3,
            frequency_penalty=0.5,
            logit_bias={5: 3.0},
        )
        for spec in specs
        for seed in range(4)
    ]
    with LLM(str(model), **{**TEST_SETTINGS, "kv_gib": 0.01}) as llm:
        outputs = llm.generate(["x"] * len(params), params)
        again = llm.generate(["x"] * len(params), params)
        with pytest.raises(RequestError, match="ignore_eos"):
            llm.generate("x", SamplingParams(ignore_eos=True, grammar=specs[1]))
    assert [item.token_ids for item in outputs] == [item.token_ids for item in again]
    for output in outputs[:4]:
        if output.finish_reason == "stop":
            assert set(json.loads(output.text)) == {"a", "b"}
    assert all(set(item.text) <= set("abcdef") and len(item.text) >= 3 for item in outputs[4:8])
    assert {item.text for item in outputs[8:12]} <= {"yes", "no", 'é"\n'}
    free = outputs[16].logprobs
    assert free is not None
    for output in outputs:
        assert output.logprobs is not None
        assert len(output.logprobs) == len(output.token_ids)
        # Of the distribution before the mask: the same best ones at the first place of all.
        assert output.logprobs[0].top == free[0].top
