"""What is kept from one request to the next stays within its bound, whatever clients send."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from tests.support.apps import App
from tests.support.grammars import ListEngine

from tokenspeed.contracts.grammar import GrammarSpec
from tokenspeed.contracts.policy import Arrival
from tokenspeed.engine.cache_tally import MAX_SESSIONS as TALLY_NAMES
from tokenspeed.engine.cache_tally import CacheTally
from tokenspeed.engine.grammars import ENTRY_BYTES, Grammars
from tokenspeed.engine.messages import CacheReport
from tokenspeed.scheduler.policies import ReturnTimePolicy
from tokenspeed.server.conversation import sessions
from tokenspeed.server.host_memory import HostMemory
from tokenspeed.server.http.connection import Connection
from tokenspeed.server.http.unread import Unread
from tokenspeed.server.metrics import Metrics
from tokenspeed.server.responses import store as response_store
from tokenspeed.server.responses.store import Record, ResponseStore

if TYPE_CHECKING:
    from pathlib import Path


def metric(text: str, name: str) -> float:
    (line,) = [line for line in text.splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def test_stores_and_readers_that_were_given_up_are_metrics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Connection, "num_aborted", 0)
    metrics, unread = Metrics(lambda: None), Unread()
    sizes = {"prompt_cache": 5}
    memory = HostMemory(metrics.host, {"prompt_cache": lambda: sizes["prompt_cache"]}, unread)
    memory.tell()
    sizes["prompt_cache"], unread.num_cut, Connection.num_aborted = 70, 2, 3
    memory.tell()
    memory.tell()
    text = metrics.render().decode()
    assert metric(text, 'tokenspeed_host_bytes{store="prompt_cache"}') == 70
    assert metric(text, "tokenspeed_answers_cut_total") == 2
    assert metric(text, "tokenspeed_connections_aborted_total") == 3


def test_names_of_sessions_are_forgotten_with_their_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MAX_SESSIONS", 20)
    known = sessions.Sessions()
    app = App(tmp_path, sessions=known)
    for index in range(60):
        messages = [
            {"role": "user", "content": f"question {index}"},
            {"role": "assistant", "content": f"answer {index}"},
            {"role": "user", "content": "and?"},
        ]
        body = {"model": "m", "messages": messages, "prompt_cache_key": f"key-{index}"}
        assert app.call("/v1/chat/completions", body).status == 200
    assert len(known) == 20
    assert len(known._last) == 20


def test_paths_and_methods_that_scanners_make_up_are_one_label(tmp_path: Path) -> None:
    app = App(tmp_path)
    before = len(app.metrics.render().splitlines())
    for index in range(50):
        app.call(f"/admin/{index}")
        app.call(f"/v1/models/{index}")
    assert len(app.metrics.render().splitlines()) < before + 20


def test_records_of_responses_are_bounded_however_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(response_store, "MAX_RECORDS", 10)
    stored = ResponseStore(tmp_path / "responses", max_bytes=1 << 20)
    for index in range(40):
        body: dict[str, Any] = {"id": f"resp_{index:024x}", "output": []}
        stored.put(Record(owner="", previous="", given=[], body=body))
    assert len(stored._sizes) == 10
    assert len(list((tmp_path / "responses").glob("*/*"))) == 10
    assert stored.num_bytes == sum(size for size, _ in stored._sizes.values())


class WeightlessEngine(ListEngine):
    """Says that its grammars take nothing."""

    def compile(self, spec: GrammarSpec) -> Any:
        """Compile."""
        grammar = super().compile(spec)
        return type("Weightless", (type(grammar),), {"num_bytes": -5})(self, spec.text)


def test_grammars_count_their_texts_whatever_their_engine_says() -> None:
    grammars = Grammars(WeightlessEngine(8, 7), "tests/weightless", cache_bytes=10 * ENTRY_BYTES)
    for index in range(100):
        pending = grammars.ask(GrammarSpec("regex", f"{index}"))
        pending.future.result(60)
        grammars.take(pending)
    assert len(grammars._ready) <= 10
    assert grammars.cached_bytes <= 10 * ENTRY_BYTES
    grammars.close()


def test_habits_and_sums_are_kept_for_the_latest_sessions_only() -> None:
    policy, tally = ReturnTimePolicy(max_sessions=50), CacheTally()
    for index in range(2 * TALLY_NAMES):
        policy.keys(Arrival(index + 1, 0, 0, 10, index))
        policy.turn_ended(index + 1, index)
        report = CacheReport(1, 2, 3, 1, "never_stored")
        tally.add(report, f"session-{index}", root=f"root-{index}", tenant=f"tenant-{index}")
    assert len(policy._sessions) == 50
    for sums in (tally.sessions, tally.roots, tally.tenants):
        assert len(sums.shown()) == TALLY_NAMES + 1
    assert tally.total.prompts == 2 * TALLY_NAMES
