"""Stored responses and messages on a real server with two API processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.support.server import SCRIPT

if TYPE_CHECKING:
    from tests.support.server import ServerProcess

KEY = {"Authorization": "Bearer secret"}


def test_a_stored_response_is_found_by_every_api_process(script_server: ServerProcess) -> None:
    body = {"model": "scripted", "input": "hi", "store": True}
    made = script_server.call("/v1/responses", body, headers=KEY).json()
    assert made["output"][0]["content"][0]["text"] == SCRIPT
    path = f"/v1/responses/{made['id']}"
    for _ in range(12):
        assert script_server.call(path, headers=KEY).json() == made
    going_on = {**body, "previous_response_id": made["id"]}
    second = script_server.call("/v1/responses", going_on, headers=KEY).json()
    assert second["usage"]["input_tokens"] > made["usage"]["input_tokens"] + len(SCRIPT)
    assert script_server.call(path, method="DELETE", headers=KEY).status == 200
    for _ in range(12):
        assert script_server.call(path, headers=KEY).status == 404


def test_a_second_turn_of_messages_is_read_from_the_cache(hash_server: ServerProcess) -> None:
    said = [{"role": "user", "content": "Another story. " * 20}]
    body = {"model": "hashed", "max_tokens": 8, "messages": said}
    first = hash_server.call("/v1/messages", body).json()
    assert first["stop_reason"] == "max_tokens"
    said += [
        {"role": "assistant", "content": first["content"]},
        {"role": "user", "content": [{"type": "text", "text": "go on"}]},
    ]
    second = hash_server.call("/v1/messages", body).json()["usage"]
    total = first["usage"]["input_tokens"] + first["usage"]["cache_read_input_tokens"]
    assert total <= second["cache_read_input_tokens"] <= total + 8
