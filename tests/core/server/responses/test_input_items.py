"""Items of stored responses: listed page by page, and named in place of being sent again."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import openai
import pytest
from tests.support.apps import App, answer
from tests.support.server import SCRIPT

from tokenspeed.server.http.api_keys import ApiKeys
from tokenspeed.server.responses.item_ids import item_id, response_of
from tokenspeed.server.responses.store import ResponseStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.support.server import ServerProcess

TOOL = {"type": "function", "name": "sh", "parameters": {"type": "object"}, "strict": False}
CALLED = answer(think="I look.", text="Now:", calls=[("sh", "{}")])


def ask(app: App, given: Any, *, status: int = 200, **fields: Any) -> Any:
    reply = app.call("/v1/responses", {"model": "m", "input": given, **fields})
    assert reply.status == status, reply.text
    return reply.json()


def items_of(app: App, response_id: str, query: str = "", *, status: int = 200) -> Any:
    reply = app.call(f"/v1/responses/{response_id}/input_items{query}")
    assert reply.status == status, reply.text
    return reply.json()


def say(number: int) -> dict[str, Any]:
    return {"role": "user", "content": f"number {number}"}


def test_an_items_id_names_its_response() -> None:
    response_id = f"resp_{7:024x}"
    ids = {item_id(prefix, response_id, number) for prefix in ("rs", "fco") for number in (0, 99)}
    assert len(ids) == 4
    assert {response_of(name) for name in ids} == {response_id}
    assert response_of("msg_67ccd2bed1ec8190b14f964abc054267") == "resp_67ccd2bed1ec8190b14f964a"
    assert response_of("msg_1") is None


def test_inputs_are_listed_as_the_api_spells_them(app: App) -> None:
    output = {"type": "function_call_output", "call_id": "c", "output": "a.txt"}
    call = {"type": "function_call", "call_id": "c", "name": "sh", "arguments": "{}"}
    said = {"role": "assistant", "content": "I call."}
    made = ask(app, [say(1), said, call, output], tools=[TOOL])
    listed = items_of(app, made["id"], "?order=asc")
    message, answered, called, told = listed["data"]
    assert message["content"] == [{"type": "input_text", "text": "number 1"}]
    assert (message["type"], message["role"], message["status"]) == (
        "message",
        "user",
        "completed",
    )
    assert answered["content"] == [{"type": "output_text", "text": "I call.", "annotations": []}]
    assert called.items() >= call.items()
    assert told.items() >= output.items()
    assert [item["id"].split("_")[0] for item in listed["data"]] == ["msg", "msg", "fc", "fco"]
    assert (listed["object"], listed["has_more"]) == ("list", False)
    assert (listed["first_id"], listed["last_id"]) == (message["id"], told["id"])


def test_pages_follow_each_other_in_either_order(app: App) -> None:
    made = ask(app, [say(number) for number in range(25)])
    whole = [item["id"] for item in items_of(app, made["id"], "?order=asc&limit=100")["data"]]
    assert len(set(whole)) == 25
    first = items_of(app, made["id"])
    assert [item["id"] for item in first["data"]] == whole[:-21:-1]
    assert first["has_more"] is True
    for order, wanted in (("asc", whole), ("desc", whole[::-1])):
        got: list[str] = []
        while True:
            after = f"&after={got[-1]}" if got else ""
            page = items_of(app, made["id"], f"?order={order}&limit=7{after}")
            got += [item["id"] for item in page["data"]]
            if not page["has_more"]:
                break
        assert got == wanted
    last = items_of(app, made["id"], f"?after={whole[0]}")
    assert (last["data"], last["first_id"], last["has_more"]) == ([], None, False)


def test_what_a_response_goes_on_from_is_part_of_its_input(app: App) -> None:
    app.engine.script = CALLED
    first = ask(app, "List it.", tools=[TOOL])
    call_id = first["output"][-1]["call_id"]
    output = {"type": "function_call_output", "call_id": call_id, "output": "a.txt"}
    second = ask(app, [output], previous_response_id=first["id"], tools=[TOOL])
    listed = items_of(app, second["id"], "?order=asc")["data"]
    kinds = ["message", "reasoning", "message", "function_call", "function_call_output"]
    assert [item["type"] for item in listed] == kinds
    assert [item["id"] for item in listed[1:4]] == [item["id"] for item in first["output"]]
    again = ask(app, [*first["output"], output], previous_response_id=first["id"], tools=[TOOL])
    repeated = [item["id"] for item in items_of(app, again["id"])["data"]]
    assert len(set(repeated)) == len(repeated) == 8
    app.call(f"/v1/responses/{first['id']}", method="DELETE")
    assert items_of(app, second["id"], status=404)["error"]["code"] == "response_not_found"


@pytest.mark.parametrize("typed", [True, False])
def test_a_reference_is_the_item_itself(app: App, *, typed: bool) -> None:
    app.engine.script = CALLED
    first = ask(app, "List it.", tools=[TOOL])
    listed = items_of(app, first["id"])["data"]
    named = [{"id": item["id"]} for item in (*listed, *first["output"])]
    if typed:
        named = [{"type": "item_reference", **item} for item in named]
    output = {
        "type": "function_call_output",
        "call_id": first["output"][-1]["call_id"],
        "output": "a.txt",
    }
    app.engine.script = "Done."
    second = ask(app, [*named, output], tools=[TOOL])
    by_name = app.engine.prompt
    ask(app, [output], previous_response_id=first["id"], tools=[TOOL])
    assert app.engine.prompt == by_name
    app.call(f"/v1/responses/{first['id']}", method="DELETE")
    third = ask(app, "And?", previous_response_id=second["id"], tools=[TOOL])
    assert third["status"] == "completed", "what was named is stored with what named it"


def test_what_is_not_stored_cannot_be_named(app: App, tmp_path: Path) -> None:
    unstored = ask(app, "x", store=False)["output"][0]["id"]
    stored = ask(app, "x")["output"][0]["id"]
    for name in (unstored, "msg_1", stored[:-1] + "9"):
        error = ask(app, [say(1), {"type": "item_reference", "id": name}], status=404)["error"]
        assert (error["param"], error["code"]) == ("input.1", "item_not_found")
    bare = App(tmp_path / "bare")
    error = ask(bare, [{"type": "item_reference", "id": stored}], status=400)["error"]
    assert "stores no responses" in error["message"]


def test_items_are_their_owners_alone(tmp_path: Path) -> None:
    store = ResponseStore(tmp_path / "responses", max_bytes=1 << 20)
    app = App(tmp_path, keys=ApiKeys({"one": "a", "two": "b"}), responses=store)
    body = {"model": "m", "input": "secret"}
    made = app.call("/v1/responses", body, authorization="Bearer one").json()
    path = f"/v1/responses/{made['id']}/input_items"
    assert app.call(path, authorization="Bearer one").json()["data"]
    assert app.call(path, authorization="Bearer two").status == 404
    named = {"model": "m", "input": [{"id": made["output"][0]["id"]}]}
    assert app.call("/v1/responses", named, authorization="Bearer two").status == 404
    assert app.call("/v1/responses", named, authorization="Bearer one").status == 200


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("?limit=0", "limit"),
        ("?limit=101", "limit"),
        ("?limit=x", "limit"),
        ("?order=up", "order"),
        ("?after=msg_1", "after"),
        ("?before=msg_1", "before"),
    ],
)
def test_a_query_that_is_wrong_is_refused_by_name(app: App, query: str, param: str) -> None:
    made = ask(app, "x")
    assert items_of(app, made["id"], query, status=400)["error"]["param"] == param
    streamed = app.call(f"/v1/responses/{made['id']}?stream=true")
    assert (streamed.status, streamed.json()["error"]["param"]) == (400, "stream")


def test_the_openai_client_pages_names_reads_and_deletes(script_server: ServerProcess) -> None:
    base = f"{script_server.url}/v1"
    with openai.OpenAI(base_url=base, api_key="secret", max_retries=0) as client:
        given: Any = [say(number) for number in range(5)]
        made = client.responses.create(model="scripted", input=given)
        assert made.output_text == SCRIPT
        assert client.responses.retrieve(made.id).output_text == SCRIPT
        listed = client.responses.input_items.list(made.id, limit=2, order="asc")
        assert len(listed.data) == 2
        items: list[Any] = list(itertools.islice(listed, 10))
        texts = [item.content[0].text for item in items]
        assert texts == [f"number {number}" for number in range(5)]
        named: Any = [{"type": "item_reference", "id": item.id} for item in items]
        again = client.responses.create(model="scripted", input=named)
        assert again.usage is not None
        assert made.usage is not None
        assert again.usage.input_tokens == made.usage.input_tokens
        client.responses.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="scripted", input=named)
