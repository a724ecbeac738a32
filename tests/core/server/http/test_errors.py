"""Error classes and their HTTP answers."""

from __future__ import annotations

from tokenspeed.errors import EngineError, EngineGoneError
from tokenspeed.server.http.errors import OPENAI, status_of


def test_an_engine_that_is_given_up_is_503_as_in_health() -> None:
    assert status_of(EngineGoneError("gone")) == 503
    assert status_of(EngineError("failed")) == 500


def test_whatever_a_message_echoes_its_body_is_short() -> None:
    error = OPENAI.body("x" * 1_000_000, 400, param="y" * 1_000_000)["error"]
    assert len(error["message"]) + len(error["param"]) < 1300
