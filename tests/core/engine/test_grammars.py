"""Grammars are compiled once, shared, bounded in bytes, and waited for no longer than allowed."""

from __future__ import annotations

import threading

import pytest
from tests.support.grammars import ListEngine, ListGrammar

from tokenspeed.contracts.grammar import GrammarSpec
from tokenspeed.engine.grammars import Grammars
from tokenspeed.errors import CapacityError, EngineError, RequestError


def spec(text: str, **fields: object) -> GrammarSpec:
    return GrammarSpec("regex", text, **fields)  # type: ignore[arg-type]


def taken(grammars: Grammars, item: GrammarSpec) -> object:
    pending = grammars.ask(item)
    pending.future.exception(timeout=10)
    return grammars.take(pending)


def test_a_grammar_is_compiled_once_for_all_that_ask() -> None:
    engine = ListEngine(8, 7)
    grammars = Grammars(engine, "tests/list")
    one = taken(grammars, spec("1"))
    assert taken(grammars, spec("1", after=(3,), field="guided_regex")) is one
    assert engine.num_compiled == 1
    assert grammars.cached_bytes == 1000


def test_what_does_not_fit_the_budget_is_forgotten_oldest_first() -> None:
    engine = ListEngine(8, 7)
    grammars = Grammars(engine, "tests/list", cache_bytes=2500)
    for text in ("1", "2", "1", "3", "1"):
        taken(grammars, spec(text))
    assert (engine.num_compiled, grammars.cached_bytes) == (3, 2000)
    taken(grammars, spec("2"))
    assert engine.num_compiled == 4


def test_a_refusal_names_the_field_of_the_request() -> None:
    grammars = Grammars(ListEngine(8, 7), "tests/list")
    with pytest.raises(RequestError, match=r"^tools.*at #/a: malformed") as caught:
        taken(grammars, spec("malformed", field="tools"))
    assert caught.value.param == "tools.a"


@pytest.mark.parametrize("error", [ValueError, SystemExit])
@pytest.mark.parametrize("call", ["compile", "num_bytes"])
def test_an_engine_that_raises_fails_the_request(call: str, error: type[BaseException]) -> None:
    grammars = Grammars(ListEngine(8, 7, {"1": call}, error), "tests/list")
    with pytest.raises(EngineError, match=f"tests/list failed.*planted in {call}"):
        taken(grammars, spec("1"))
    assert taken(grammars, spec("2"))


class SlowEngine(ListEngine):
    """Compiles "slow" when it is let."""

    def __init__(self) -> None:
        super().__init__(8, 7)
        self.may_go_on = threading.Event()

    def compile(self, item: GrammarSpec) -> ListGrammar:
        """Wait, then compile."""
        if item.text.startswith("slow"):
            self.may_go_on.wait(30)
        return ListGrammar(self, "1")


def test_a_grammar_that_takes_too_long_is_refused_and_what_was_not_begun_is_dropped() -> None:
    engine = SlowEngine()
    grammars = Grammars(engine, "tests/slow", timeout_s=0.05)
    pending = [grammars.ask(spec(f"slow {i}")) for i in range(4)]
    assert not any(item.is_settled(item.give_up_s - 0.01) for item in pending)
    assert all(item.is_settled(item.give_up_s) for item in pending)
    while not all(item.future.running() for item in pending[:2]):
        pass
    with pytest.raises(RequestError, match=r"not ready after 0\.05 s"):
        grammars.take(pending[0])
    with pytest.raises(CapacityError, match="others came before it"):
        grammars.take(pending[2])
    grammars.drop(pending[3])
    assert pending[3].future.cancelled()
    engine.may_go_on.set()


def test_two_that_wait_for_one_grammar_are_told_apart_when_one_gives_up() -> None:
    engine = SlowEngine()
    grammars = Grammars(engine, "tests/slow")
    one, other = grammars.ask(spec("slow")), grammars.ask(spec("slow"))
    assert one.future is other.future
    grammars.drop(one)
    engine.may_go_on.set()
    assert other.future.exception(timeout=10) is None
    assert grammars.take(other)
