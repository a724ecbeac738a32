"""/health says when no step is completed while requests are there, why, and since when."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.apps import App
from tests.support.scripted import write_scripted_model
from tests.support.server import ServerProcess

from tokenspeed.engine.flight_record import FlightRecord, record_of

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def app(tmp_path: Path) -> App:
    folder = tmp_path / "app"
    return App(folder, record=record_of(tmp_path))


@pytest.fixture
def record(tmp_path: Path) -> FlightRecord:
    return FlightRecord(record_of(tmp_path), max_running=1)


class Clock:
    """The monotonic clock of the record's writer and readers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(time, "monotonic_ns", lambda: int(self.now_s * 1e9))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_an_idle_engine_is_healthy_for_ever(app: App, clock: Clock, record: FlightRecord) -> None:
    record.enter_turn()
    record.leave_turn(has_work=False)
    clock.now_s += 3600
    answer = app.call("/health")
    assert answer.status == 200
    assert answer.json() == {
        "status": "ok",
        "model": "m",
        "engine_epoch": 1,
        "heard_s": 0.0,
        "step_running_s": 0.0,
        "no_step_completed_s": 0.0,
    }


def test_work_without_a_completed_step_is_a_503_until_one_is(
    app: App, clock: Clock, record: FlightRecord
) -> None:
    record.enter_turn()
    record.leave_turn(has_work=True)
    clock.now_s += 9.9
    assert app.call("/health").status == 200
    clock.now_s += 0.2
    answer = app.call("/health")
    assert answer.status == 503
    body = answer.json()
    assert body["status"] == "unhealthy"
    assert body["no_step_completed_s"] == 10.1
    assert "no step was completed for 10.1 s" in body["reason"]
    assert "at most 10 s are allowed (--health-stall-s)" in body["reason"]
    assert "requests wait and none is computed" in body["reason"]
    ago_s = (datetime.now(UTC) - datetime.fromisoformat(body["since"])).total_seconds()
    assert 10.0 < ago_s < 20.0

    record.enter_turn()
    record.end(1)
    record.leave_turn(has_work=True)
    assert app.call("/health").status == 200


def test_a_hang_between_steps_is_told_from_one_in_a_step(
    app: App, clock: Clock, record: FlightRecord
) -> None:
    record.enter_turn()
    clock.now_s += 11
    assert "held up between two steps" in app.call("/health").json()["reason"]


def test_an_engine_that_is_silent_or_given_up_is_a_503(app: App) -> None:
    app.engine.silent_s = 12.5
    answer = app.call("/health")
    assert answer.status == 503
    assert "not heard of for 12.5 s" in answer.json()["reason"]
    app.engine.unhealthy_reason = "it died too often"
    app.engine.unhealthy_s = 60.0
    body = app.call("/health").json()
    assert body["reason"] == "it died too often"
    ago_s = (datetime.now(UTC) - datetime.fromisoformat(body["since"])).total_seconds()
    assert 60.0 <= ago_s < 70.0


def wait_health(server: ServerProcess, status: int) -> dict[str, Any]:
    deadline_s = time.monotonic() + 60
    while (answer := server.call("/health")).status != status:
        assert time.monotonic() < deadline_s, answer.body
        time.sleep(0.1)
    body: dict[str, Any] = answer.json()
    return body


def test_a_server_whose_step_sleeps_is_unhealthy_until_the_step_is_completed(
    tmp_path: Path,
) -> None:
    model = write_scripted_model(tmp_path / "model", token_us=100_000)
    flags = ("--health-stall-s", "2", "--api-workers", "2", "--max-step-tokens", "64")
    with ServerProcess(model, tmp_path, *flags) as server:
        short = {"model": "model", "prompt": "a", "max_tokens": 1}
        assert server.call("/v1/completions", short).status == 200
        assert server.call("/health").status == 200
        slow = {"model": "model", "prompt": "b" * 64, "max_tokens": 1}
        client = threading.Thread(target=server.call, args=("/v1/completions", slow))
        client.start()
        body = wait_health(server, 503)
        assert "no step was completed for" in body["reason"]
        assert "the step that is running began" in body["reason"]
        assert body["step_running_s"] > 2
        client.join()
        assert wait_health(server, 200)["no_step_completed_s"] == 0.0
