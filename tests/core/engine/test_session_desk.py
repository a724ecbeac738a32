"""Releases as they go through the turns of the loop."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tokenspeed.engine.messages import SessionQuery, SessionRelease, SessionReply, Terms
from tokenspeed.engine.requests import LiveRequest, RequestTable, number_of
from tokenspeed.engine.session_book import SessionBook
from tokenspeed.engine.session_desk import SessionDesk
from tokenspeed.errors import RequestError

CLIENT = b"api"


@dataclass
class FakeScheduler:
    """Refuses each session `draining` times, then frees one block of each group."""

    draining: int = 0
    released: list[int] = field(default_factory=list)

    def release(self, session: int, *, now_us: int) -> dict[str, Any] | None:
        if self.draining > 0:
            self.draining -= 1
            raise RequestError("it drains", code="session_busy")
        self.released.append(session)
        return {"tokens": 16, "blocks": [1, 2], "host_blocks": [0, 1]}

    def session_totals(self, session: int) -> dict[str, int]:
        return {"turns": session % 7, "prompt_tokens": 5}


class Desk:
    """A desk with a root, two children, and what it sent."""

    def __init__(self, draining: int = 0) -> None:
        self.scheduler = FakeScheduler(draining)
        self.requests = RequestTable()
        self.sent: list[SessionReply] = []
        self.aborted: list[int] = []
        self.book = SessionBook()
        for name, parent in (("r", ""), ("c1", "r"), ("c2", "r")):
            self.book.note(Terms(session=name, parent=parent, root=parent, owner="a"))
        engine: Any = SimpleNamespace(scheduler=self.scheduler, cache_block_bytes=(100, 10))
        channel: Any = SimpleNamespace(send=lambda client, message: self.sent.append(message))
        self.desk = SessionDesk(engine, channel, self.requests, self.book, abort=self.abort)

    def abort(self, key: int) -> None:
        self.aborted.append(key)
        request = self.requests.by_key(key)
        assert request is not None
        self.requests.remove(request)

    def run(self, name: str) -> None:
        number = number_of(name, owner="a")
        key = self.requests.new_key()
        self.requests.add(LiveRequest(key, f"q{key}", CLIENT, 0, session_number=number))

    def release(
        self, name: str, *, owner: str = "a", group: bool = False, abort: bool = False
    ) -> None:
        asked = SessionRelease(query_id=1, owner=owner, session=name, group=group, abort=abort)
        self.desk.release(CLIENT, asked)

    def answer(self) -> tuple[str, dict[str, Any]]:
        (reply,) = self.sent
        return reply.outcome, msgspec.msgpack.decode(reply.body)


def test_a_release_tells_what_it_freed_and_forgets_the_session() -> None:
    desk = Desk()
    desk.release("c1")
    assert desk.desk.is_busy
    desk.desk.turn()
    freed = {"session": "c1", "tokens": 16, "bytes": 120, "host_bytes": 10}
    assert desk.answer() == ("done", {"released": [freed]})
    assert not desk.desk.is_busy
    assert desk.book.find("a", "c1") is None
    assert desk.book.find("a", "r") is not None


def test_a_group_goes_children_first() -> None:
    desk = Desk()
    desk.release("r", group=True)
    for _ in range(5):
        desk.desk.turn()
    outcome, body = desk.answer()
    names = [freed["session"] for freed in body["released"]]
    assert (outcome, set(names), names[-1]) == ("done", {"r", "c1", "c2"}, "r")
    assert desk.scheduler.released == [number_of(name, owner="a") for name in names]


@pytest.mark.parametrize(("name", "owner"), [("c3", "a"), ("c1", "b")])
def test_an_unknown_session_is_told(name: str, owner: str) -> None:
    desk = Desk()
    desk.release(name, owner=owner)
    assert desk.answer() == ("unknown", {})
    assert desk.scheduler.released == []


def test_a_session_that_runs_is_refused_with_the_number_of_its_requests() -> None:
    desk = Desk()
    desk.run("c1")
    desk.run("c1")
    desk.release("r", group=True)
    assert desk.answer() == ("busy", {"live_requests": {"c1": 2}, "released": []})
    assert not desk.desk.is_busy
    desk.sent.clear()
    desk.release("r")
    desk.desk.turn()
    assert desk.answer()[0] == "done", "its children's requests are not its own"


def test_abort_ends_the_requests_and_waits_for_their_last_step() -> None:
    desk = Desk(draining=2)
    desk.run("c1")
    desk.release("c1", abort=True)
    desk.desk.turn()
    desk.desk.turn()
    assert (desk.aborted, desk.sent) == ([1], [])
    desk.run("c1")  # one more comes in between
    desk.desk.turn()
    assert (desk.aborted, desk.answer()[0]) == ([1, 2], "done")


def test_a_turn_that_comes_while_the_group_goes_ends_the_release() -> None:
    desk = Desk(draining=1)
    desk.release("r", group=True)
    desk.desk.turn()
    desk.run("r")
    for _ in range(5):
        desk.desk.turn()
    outcome, body = desk.answer()
    assert outcome == "busy"
    assert body["live_requests"] == {"r": 1}
    assert {freed["session"] for freed in body["released"]} == {"c1", "c2"}


def test_a_client_that_is_gone_is_not_waited_for() -> None:
    desk = Desk(draining=9)
    desk.release("c1")
    desk.desk.drop_client(CLIENT)
    assert not desk.desk.is_busy


def test_a_query_tells_family_sums_and_live_requests() -> None:
    desk = Desk()
    desk.run("r")
    desk.desk.tell(CLIENT, SessionQuery(query_id=1, owner="a", session="r"))
    outcome, body = desk.answer()
    assert outcome == "done"
    assert body == {
        "session": "r",
        "parent": None,
        "root": "r",
        "children": ["c1", "c2"],
        "live_requests": 1,
        "turns": number_of("r", owner="a") % 7,
        "prompt_tokens": 5,
    }
