"""A KV store that keeps failing is detached; answers stay right, and no lent buffer is reused."""

from __future__ import annotations

import random
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.engines import TEST_SETTINGS
from tests.support.plugin_wheels import PluginSpace
from tests.support.scripted import write_scripted_model

from tokenspeed import LLM, SamplingParams
from tokenspeed.contracts.kv_store import StoreDone, StoreFacts
from tokenspeed.engine import store_guard
from tokenspeed.engine.store_guard import GuardedStore
from tokenspeed.errors import EngineError

KEY = bytes(16)
DATA = memoryview(bytearray(8))


class Store:
    """A store of which every method can be made to raise or to answer nonsense."""

    facts = StoreFacts(durable=False, capacity_bytes=1)

    def __init__(self) -> None:
        self.tickets = iter(range(100, 1000))
        self.answers: list[Any] = []
        self.broken: set[str] = set()
        self.error: type[BaseException] = RuntimeError
        self.may_close = threading.Event()
        self.calls: list[str] = []
        self.listed: list[Any] = []

    def _enter(self, name: str) -> None:
        self.calls.append(name)
        if name in self.broken:
            raise self.error(f"{name} is broken")

    def put(self, key: bytes, tag: bytes, data: memoryview) -> int:
        self._enter("put")
        return next(self.tickets)

    def get(self, key: bytes, tag: bytes, into: memoryview) -> int:
        self._enter("get")
        return next(self.tickets)

    def poll(self) -> list[Any]:
        self._enter("poll")
        answers, self.answers = self.answers, []
        return answers

    def keys(self) -> list[Any]:
        self._enter("keys")
        return self.listed

    def take_lost(self) -> list[Any]:
        self._enter("take_lost")
        return self.listed

    def close(self) -> None:
        self._enter("close")
        assert self.may_close.wait(60)


def guarded() -> tuple[Store, GuardedStore]:
    store = Store()
    return store, GuardedStore(store, "acme/store")


def wait_left(guard: GuardedStore) -> list[StoreDone]:
    """Poll until the detached store has answered for everything."""
    done: list[StoreDone] = []
    deadline_s = time.monotonic() + 60
    while guard._lent and time.monotonic() < deadline_s:
        done += guard.poll()
        time.sleep(0.01)
    return done + list(guard.poll())


def test_a_working_store_is_passed_through() -> None:
    store, guard = guarded()
    first, second = guard.put(KEY, b"", DATA), guard.get(KEY, b"", DATA)
    assert first != second
    store.answers = [StoreDone(101, ok=True), StoreDone(100, ok=False)]
    assert guard.poll() == [StoreDone(second, ok=True), StoreDone(first, ok=False)]
    store.listed = [KEY]
    assert guard.keys() == guard.take_lost() == [KEY]
    assert (guard.num_failures, guard.is_detached, guard.alerts()) == (0, False, [])


@pytest.mark.parametrize("error", [RuntimeError, SystemExit])
def test_a_call_that_raises_is_an_ordinary_failure(error: type[BaseException]) -> None:
    store, guard = guarded()
    store.broken, store.error = {"get"}, error
    ticket = guard.get(KEY, b"", DATA)
    assert guard.poll() == [StoreDone(ticket, ok=False)]
    assert (guard.num_failures, guard.is_detached) == (1, False)


def test_a_success_between_failures_keeps_the_store() -> None:
    store, guard = guarded()
    for _ in range(10):
        store.broken = {"put"}
        guard.put(KEY, b"", DATA)
        store.broken = set()
        guard.get(KEY, b"", DATA)
        store.answers = [StoreDone(next(iter(guard._lent)), ok=True)]
        guard.poll()
    assert (guard.num_failures, guard.is_detached) == (10, False)


@pytest.mark.parametrize("broken", ["put", "get", "poll", "take_lost", "nonsense", "bad keys"])
def test_three_failures_in_a_row_detach_it(broken: str) -> None:
    store, guard = guarded()
    store.may_close.set()
    store.broken = {broken}
    for _ in range(3):
        assert not guard.is_detached
        if broken == "put":
            guard.put(KEY, b"", DATA)
        elif broken == "get":
            guard.get(KEY, b"", DATA)
        elif broken in ("poll", "nonsense"):
            store.answers = [StoreDone(7, ok=True)] if broken == "nonsense" else []
            guard.poll()
        else:
            store.listed = [b"short"]
            guard.take_lost()
    assert guard.is_detached
    (alert,) = guard.alerts()
    assert alert["name"] == "store_detached"
    assert "acme/store failed 3 times" in alert["message"]
    guard.close()
    num_calls = len(store.calls)
    ticket = guard.put(KEY, b"", DATA)
    assert StoreDone(ticket, ok=False) in guard.poll()
    assert (guard.keys(), guard.take_lost()) == ((), ())
    assert len(store.calls) == num_calls  # nothing more is asked of it


def test_buffers_of_a_detached_store_come_back_when_its_close_is_done() -> None:
    store, guard = guarded()
    lent = guard.get(KEY, b"", DATA)
    store.broken = {"poll"}
    for _ in range(3):
        guard.poll()
    assert guard.is_detached
    assert guard.poll() == []  # it may still write into the buffer
    late = guard.get(KEY, b"", DATA)
    assert guard.poll() == [StoreDone(late, ok=False)]
    store.may_close.set()
    assert wait_left(guard) == [StoreDone(lent, ok=False)]


def test_a_store_that_keeps_its_buffers_gives_the_engine_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store_guard, "LEAVE_S", 0.0)
    store, guard = guarded()
    guard.get(KEY, b"", DATA)
    store.broken = {"poll"}
    for _ in range(2):
        guard.poll()
    with pytest.raises(EngineError, match="holds 1 buffers"):
        guard.poll()
    store.may_close.set()
    guard.close()


BODY = """
class Broken:
    facts = StoreFacts(durable=False, capacity_bytes=1 << 20)

    def __init__(self, **options):
        self.calls = 0

    def put(self, key, tag, data):
        raise OSError("the store is gone")

    get = put

    def poll(self):
        return ()

    keys = take_lost = poll

    def close(self):
        pass

class Plugin:
    @hookimpl
    def register_kv_stores(self, context):
        context.offer(Offer("kv_store", "broken", Broken))

plugin = Plugin()
"""


def test_an_engine_goes_on_without_its_store_and_answers_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    space = PluginSpace(tmp_path / "site", monkeypatch)
    space.install("acme", BODY, slots='kv_store = "1.0"')
    model = write_scripted_model(tmp_path / "model", mode="hash")
    draw = random.Random(5)
    prompts = [[draw.randrange(94) for _ in range(150)] for _ in range(6)]
    params = SamplingParams(temperature=0.0, max_tokens=6)
    small = {**TEST_SETTINGS, "kv_gib": 0.0001, "max_context_tokens": 200}
    with LLM(str(model), **{**small, "prefix_cache": False}) as llm:
        wanted = [output.token_ids for output in llm.generate(prompts * 2, params)]
    tiers = {"host_kv_gib": 0.01, "kv_store": "acme/broken", "plugins": ("sdk", "acme")}
    with LLM(str(model), **{**small, **tiers}) as llm:
        answers = [llm.generate([prompt], params)[0].token_ids for prompt in prompts * 2]
        stats = llm.stats()
    assert answers == wanted
    assert (stats.store_detached, stats.store_failures) == (1, 3)
