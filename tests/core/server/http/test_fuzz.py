"""Bodies that nobody meant: whatever comes, the answer is below 500, and as the document has it."""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.support.apps import App, answer
from tests.support.bodies import BODIES
from tests.support.openapi import Contract

from tokenspeed.server.responses.store import ResponseStore

if TYPE_CHECKING:
    from pathlib import Path

ODD: tuple[Any, ...] = (
    None, True, -1, 0, 10**30, 1.5, "", "x", "\u0000", "\ufdd0", [], [[]], {}, [None],
    {"type": "text"}, {"type": "function"}, {"role": "user"}, "resp_" + "0" * 24, "x" * 3000,
    {"": {"": []}}, [{}] * 50, "reasoning", "{", "[1]", {"$ref": "#"}, {"type": []}, [True, "a"],
)  # fmt: skip


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the path of every value inside another one."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, item in inside:
        found.append((*path, key))
        if isinstance(item, dict | list):
            found += places(item, (*path, key))
    return found


def mutated(body: dict[str, Any], chooser: random.Random) -> dict[str, Any]:
    """Return a body with up to three values changed, taken out or given a neighbour."""
    body = copy.deepcopy(body)
    for _ in range(chooser.randint(1, 3)):
        *path, key = chooser.choice(places(body))
        holder: Any = body
        for step in path:
            holder = holder[step]
        match chooser.randrange(4):
            case 0:
                del holder[key]
            case 1 if isinstance(holder, dict):
                holder[chooser.choice(["type", "id", "content", "name", "n"])] = copy.deepcopy(
                    chooser.choice(ODD)
                )
            case _:
                holder[key] = copy.deepcopy(chooser.choice(ODD))
        if not body:
            break
    return body


def check(app: App, contract: Contract, path: str, body: dict[str, Any]) -> None:
    reply = app.call(path, body)
    contract.check("POST", path, reply)
    assert reply.status < 500, reply.text
    if reply.status >= 400:
        error = reply.json()["error"]
        assert error["message"]
        assert len(error["message"]) < 1100
    elif reply.headers["content-type"].startswith("text/event-stream"):
        assert reply.events(), "a stream says something"


def run(app: App, seed: int, num_requests: int) -> None:
    chooser = random.Random(seed)
    contract = Contract(app.call("/openapi.json").json())
    for number in range(num_requests):
        path, body = chooser.choice(list(BODIES.items()))
        stream = {"stream": True} if chooser.random() < 0.3 and "tok" not in path else {}
        sent = mutated({"model": "m", **body, **stream}, chooser)
        try:
            check(app, contract, path, sent)
        except BaseException:
            print(f"seed {seed}, request {number}: {path} {sent!r}")
            raise


@pytest.fixture
def app(tmp_path: Path) -> App:
    made = App(tmp_path, responses=ResponseStore(tmp_path / "responses", max_bytes=1 << 16))
    made.engine.script = answer(think="a", text="b", calls=[("f", "{}")])
    return made


@pytest.mark.parametrize("path", BODIES)
def test_the_body_that_is_mutated_is_fine_itself(app: App, path: str) -> None:
    assert app.call(path, {"model": "m", **BODIES[path]}).status == 200


def test_no_body_brings_a_500(app: App) -> None:
    run(app, seed=random.SystemRandom().randrange(1 << 32), num_requests=2000)


@pytest.mark.slow
def test_ten_thousand_bodies_bring_no_500(app: App) -> None:
    run(app, seed=random.SystemRandom().randrange(1 << 32), num_requests=10_000)
