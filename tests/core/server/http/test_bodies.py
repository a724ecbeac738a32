"""Bodies of requests have a budget in memory, and must come."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from tests.support.apps import App

from tokenspeed.errors import CapacityError
from tokenspeed.server.http.bodies import Bodies

if TYPE_CHECKING:
    from pathlib import Path

CHAT = "/v1/chat/completions"


def body_of(num_bytes: int) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": "x" * num_bytes}]}


def test_the_bodies_of_others_fill_the_budget_and_ones_own_alone_does_not() -> None:
    bodies = Bodies(max_bytes=100)
    first: dict[str, Any] = {}
    second: dict[str, Any] = {}
    bodies.take(first, 150)
    with pytest.raises(CapacityError, match="hold 150 bytes of bodies and this one brings 1, 100"):
        bodies.take(second, 1)
    bodies.release(second)
    bodies.release(first)
    assert bodies.num_bytes == 0
    bodies.take(second, 1)
    bodies.release(second)
    bodies.release(second)
    assert bodies.num_bytes == 0


def test_a_body_is_counted_until_its_request_has_ended(tmp_path: Path) -> None:
    bodies = Bodies(max_bytes=10_000)
    app = App(tmp_path, bodies=bodies)
    app.engine.pause_s = 0.02
    seen: list[int] = []

    async def both() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app.asgi)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            first = asyncio.create_task(client.post(CHAT, json=body_of(4000)))
            while not app.engine.submits:
                await asyncio.sleep(0.001)
            seen.append(bodies.num_bytes)
            second = await client.post(CHAT, json=body_of(7000))
            return [await first, second]

    first, second = asyncio.run(both())
    assert seen == [len(json.dumps(body_of(4000), separators=(",", ":")))]
    assert (first.status_code, second.status_code) == (200, 429)
    assert second.headers["retry-after"] == "2"
    assert "bytes of bodies" in second.json()["error"]["message"]
    assert bodies.num_bytes == 0
    assert app.call(CHAT, body_of(4000)).status == 200
    assert app.call(CHAT, {"model": "other"}).status in (400, 404)
    assert bodies.num_bytes == 0


def test_a_body_that_does_not_go_on_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenspeed.server.http.body.STALL_S", 0.05)
    app = App(tmp_path)
    sent: list[dict[str, Any]] = []
    parts = iter([{"type": "http.request", "body": b'{"mod', "more_body": True}])

    async def receive() -> dict[str, Any]:
        try:
            return next(parts)
        except StopIteration:
            await asyncio.sleep(600)
            raise AssertionError from None

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "POST", "path": CHAT, "raw_path": CHAT.encode(), "headers": [],
        "query_string": b"", "root_path": "", "http_version": "1.1", "scheme": "http",
        "asgi": {"version": "3.0"}, "client": None, "server": None,
    }  # fmt: skip
    asyncio.run(asyncio.wait_for(app.asgi(scope, receive, send), 5))
    assert sent[0]["status"] == 408
    assert b"did not go on for 0.05 s" in sent[1]["body"]
