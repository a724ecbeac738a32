"""Suspects run one at a time; the innocent never wait."""

from __future__ import annotations

from tokenspeed.engine.messages import Submit
from tokenspeed.engine.suspects import SuspectGate
from tokenspeed.sampling import SamplingParams


def submit(request_id: str) -> Submit:
    """A Submit of which only the id matters."""
    return Submit(
        request_id=request_id, epoch=1, prompt_ids=b"", params=SamplingParams(), stop_token_ids=()
    )


def test_innocent_requests_pass_while_a_suspect_is_on_trial() -> None:
    gate = SuspectGate({"s": 0})
    assert gate.admits(b"c", submit("s"))
    assert gate.admits(b"c", submit("innocent"))


def test_the_second_suspect_waits_until_the_first_has_passed_its_step() -> None:
    gate = SuspectGate({"a": 4, "b": 0})
    assert gate.admits(b"c", submit("a"))
    assert not gate.admits(b"c", submit("b"))
    gate.note_progress("a", 4)
    assert gate.next_held() is None
    gate.note_progress("a", 5)
    held = gate.next_held()
    assert held is not None
    assert held[1].request_id == "b"
    assert gate.admits(*held)


def test_a_suspect_that_ends_makes_room_for_the_next() -> None:
    gate = SuspectGate({"a": 0, "b": 0})
    gate.admits(b"c", submit("a"))
    gate.admits(b"c", submit("b"))
    gate.note_end("a")
    assert gate.next_held() is not None


def test_a_held_suspect_that_is_aborted_never_runs() -> None:
    gate = SuspectGate({"a": 0, "b": 0})
    gate.admits(b"c", submit("a"))
    gate.admits(b"c", submit("b"))
    gate.note_end("b")
    gate.note_end("a")
    assert gate.next_held() is None
