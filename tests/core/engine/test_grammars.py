"""Grammars are compiled once, shared, bounded in bytes, and waited for no longer than allowed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.support.grammars import ListEngine, ListGrammar

from tokenspeed.contracts.grammar import GrammarSpec
from tokenspeed.engine.grammars import COMPILE_THREADS, ENTRY_BYTES, MAX_STUCK, Grammars
from tokenspeed.errors import CapacityError, EngineError, RequestError

Make = Callable[..., Grammars]


@pytest.fixture
def make() -> Iterator[Make]:
    """Make Grammars whose threads end with the test."""
    made = []

    def one(*args: Any, **options: Any) -> Grammars:
        made.append(Grammars(*args, **options))
        return made[-1]

    yield one
    for grammars in made:
        grammars.close()


def spec(text: str, **fields: object) -> GrammarSpec:
    return GrammarSpec("regex", text, **fields)  # type: ignore[arg-type]


def taken(grammars: Grammars, item: GrammarSpec) -> object:
    pending = grammars.ask(item)
    pending.future.exception(timeout=60)
    return grammars.take(pending)


def test_a_grammar_is_compiled_once_for_all_that_ask(make: Make) -> None:
    engine = ListEngine(8, 7)
    grammars = make(engine, "tests/list")
    one = taken(grammars, spec("1"))
    assert taken(grammars, spec("1", after=(3,), field="guided_regex")) is one
    assert engine.num_compiled == 1
    assert grammars.cached_bytes == 1000 + ENTRY_BYTES + 1


def test_what_does_not_fit_the_budget_is_forgotten_oldest_first(make: Make) -> None:
    engine = ListEngine(8, 7)
    grammars = make(engine, "tests/list", cache_bytes=3500)
    for text in ("1", "2", "1", "3", "1"):
        taken(grammars, spec(text))
    assert (engine.num_compiled, grammars.cached_bytes) == (3, 2 * (1000 + ENTRY_BYTES + 1))
    taken(grammars, spec("2"))
    assert engine.num_compiled == 4


def test_a_refusal_names_the_field_of_the_request(make: Make) -> None:
    grammars = make(ListEngine(8, 7), "tests/list")
    with pytest.raises(RequestError, match=r"^tools.*at #/a: malformed") as caught:
        taken(grammars, spec("malformed", field="tools"))
    assert caught.value.param == "tools.a"


@pytest.mark.parametrize("error", [ValueError, SystemExit])
@pytest.mark.parametrize("call", ["compile", "num_bytes"])
def test_an_engine_that_raises_fails_the_request(
    make: Make, call: str, error: type[BaseException]
) -> None:
    grammars = make(ListEngine(8, 7, {"1": call}, error), "tests/list")
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
            self.may_go_on.wait(60)
        return ListGrammar(self, "1")


def test_a_grammar_that_takes_too_long_is_refused_and_what_was_not_begun_is_dropped(
    make: Make,
) -> None:
    engine = SlowEngine()
    grammars = make(engine, "tests/slow", timeout_s=0.05)
    pending = [grammars.ask(spec(f"slow {i}")) for i in range(4)]
    assert not any(item.is_settled(item.give_up_s - 0.01) for item in pending)
    assert all(item.is_settled(item.give_up_s) for item in pending)
    while not all(item.future.running() for item in pending[:2]):
        pass
    time.sleep(0.05)
    with pytest.raises(RequestError, match=r"not ready after 0\.05 s"):
        grammars.take(pending[0])
    with pytest.raises(CapacityError, match="others came before it"):
        grammars.take(pending[2])
    engine.may_go_on.set()


def test_what_nobody_waits_for_any_more_is_not_begun(make: Make) -> None:
    engine = SlowEngine()
    grammars = make(engine, "tests/slow")
    pending = [grammars.ask(spec(f"slow {i}")) for i in range(3)]
    grammars.drop(pending[2])
    assert pending[2].future.cancelled()
    engine.may_go_on.set()


def give_up(grammars: Grammars, text: str) -> None:
    pending = grammars.ask(spec(text))
    while not pending.future.running():
        time.sleep(0.001)
    time.sleep(0.05)
    with pytest.raises(RequestError, match="not ready"):
        grammars.take(pending)


def test_stuck_compilations_take_nobodys_thread_and_are_not_begun_again(make: Make) -> None:
    engine = SlowEngine()
    grammars = make(engine, "tests/slow", timeout_s=0.05)
    for number in range(COMPILE_THREADS):
        give_up(grammars, f"slow {number}")
    again = grammars.ask(spec("slow 0"))
    with pytest.raises(RequestError, match="not ready"):
        grammars.take(again)
    assert grammars.num_stuck == COMPILE_THREADS
    other = grammars.ask(spec("1"))
    assert other.future.exception(timeout=60) is None
    assert grammars.take(other)
    engine.may_go_on.set()


def test_too_many_stuck_compilations_refuse_new_ones_until_they_end(make: Make) -> None:
    engine = SlowEngine()
    grammars = make(engine, "tests/slow", timeout_s=0.05)
    kept = grammars.ask(spec("1"))
    assert kept.future.exception(timeout=60) is None
    assert grammars.take(kept)
    for number in range(MAX_STUCK):
        give_up(grammars, f"slow {number}")
    with pytest.raises(CapacityError, match="cannot be compiled"):
        grammars.take(grammars.ask(spec("2")))
    assert grammars.take(grammars.ask(spec("1"))), "what is there is given all the same"
    engine.may_go_on.set()
    while grammars.num_stuck:
        time.sleep(0.001)
    other = grammars.ask(spec("2"))
    assert other.future.exception(timeout=60) is None
    assert grammars.take(other)


def test_two_that_wait_for_one_grammar_are_told_apart_when_one_gives_up(make: Make) -> None:
    engine = SlowEngine()
    grammars = make(engine, "tests/slow")
    one, other = grammars.ask(spec("slow")), grammars.ask(spec("slow"))
    assert one.future is other.future
    grammars.drop(one)
    engine.may_go_on.set()
    assert other.future.exception(timeout=60) is None
    assert grammars.take(other)


def test_stuck_compilations_of_clients_that_went_away_take_nobodys_thread(make: Make) -> None:
    engine = SlowEngine()
    grammars = make(engine, "tests/slow", timeout_s=0.05)
    for number in range(COMPILE_THREADS):
        pending = grammars.ask(spec(f"slow {number}"))
        while not pending.future.running():
            time.sleep(0.001)
        grammars.drop(pending)
    time.sleep(0.05)
    other = grammars.ask(spec("1"))
    assert other.future.exception(timeout=60) is None
    assert grammars.num_stuck == COMPILE_THREADS
    engine.may_go_on.set()


def test_closing_ends_the_threads_and_begins_nothing_more() -> None:
    engine = SlowEngine()
    grammars = Grammars(engine, "tests/slow")
    before = set(threading.enumerate())
    begun = [grammars.ask(spec(f"slow {number}")) for number in range(COMPILE_THREADS)]
    waiting = grammars.ask(spec("1"))
    while not all(pending.future.running() for pending in begun):
        time.sleep(0.001)
    threads = set(threading.enumerate()) - before
    assert len(threads) == COMPILE_THREADS
    grammars.close()
    assert waiting.future.cancelled()
    engine.may_go_on.set()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
