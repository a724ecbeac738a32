"""The view of `tokenspeed top`: figures, bars, and what fits into a terminal."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from tokenspeed.cli.top_view import picture


def make_request(index: int, **fields: Any) -> dict[str, Any]:
    """One request of a state document."""
    return {
        "id": f"cmpl-{index:04}", "key": index, "state": "Decoding", "priority": 0,
        "age_s": 100.0 - index, "prompt_tokens": 1000 + index, "cached_tokens": 960,
        "computed_tokens": 1100, "output_tokens": 100, "blocks": {"full": 9}, **fields,
    }  # fmt: skip


def make_state(num_running: int = 3, num_waiting: int = 0, **fields: Any) -> dict[str, Any]:
    """A state document as a server sends it."""
    counters = dict.fromkeys(
        ("prefilling", "decoding", "waiting", "retracted", "retractions", "evictions"), 0
    )
    queue = [
        make_request(500 + i, state="Submitted", position=i, reason="out of blocks")
        for i in range(num_waiting)
    ]
    return {
        "time": 1.0, "epoch": 2, "uptime_s": 3723.4, "model": "m",
        "limits": {"max_running": 64},
        "rates": {"output_tok_s": 1234.5, "computed_tok_s": 99.0, "ttft_ms_p50": None,
                  "ttft_ms_p99": None},
        "steps": {"step_us_p50": 12345.0},
        "last_plan": None,
        "counters": {**counters, "decoding": num_running, "waiting": num_waiting, "finished": 7,
                     "prompt_tokens": 1000, "cached_tokens": 900},
        "blocks": {"total": 100, "used": 25, "cached": 50, "free": 25,
                   "groups": [{"name": "full", "used": 25, "cached": 50}]},
        "requests": [make_request(i) for i in range(num_running)],
        "queue": queue,
        **fields,
    }  # fmt: skip


def drawn(state: dict[str, Any], last: Any = None, *, width: int = 120, height: int = 40) -> str:
    """Draw and return the text."""
    console = Console(file=io.StringIO(), width=width, height=height, no_color=True)
    console.print(picture(state, last, "http://x", width=width, height=height))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_the_head_has_rates_and_the_share_of_cached_tokens() -> None:
    text = drawn(make_state())
    assert "http://x  m  up 1:02:03  start 2" in text
    assert "out 1,234.5 tok/s" in text
    assert "TTFT - (p99 -)" in text
    assert "hit 90.0 %" in text
    assert "running 3/64" in text


def test_the_hit_rate_of_late_stands_beside_the_whole() -> None:
    before, after = make_state(), make_state()
    after["counters"].update(prompt_tokens=1100, cached_tokens=950)
    assert "hit 50.0 % now, 86.4 %" in drawn(after, before)
    assert "hit 90.0 %  " in drawn(before, before) or "hit 90.0 %\n" in drawn(before, before)


def test_a_bar_shows_used_cached_and_free_in_proportion() -> None:
    line = next(line for line in drawn(make_state()).splitlines() if line.startswith("device"))
    assert f"[{'#' * 10}{'=' * 20}{'.' * 10}] 25 used  50 cached  25 free  of 100" in line


def test_groups_and_tiers_have_their_own_bars() -> None:
    state = make_state(tiers=[{"name": "host", "total": 10, "used": 5, "cached": 5}])
    state["blocks"]["groups"].append({"name": "window", "used": 1, "cached": 0})
    starts = [line.split("[")[0].strip() for line in drawn(state).splitlines() if "of 1" in line]
    assert starts == ["device", "full", "window", "host"]


def test_the_queue_says_what_each_waits_for() -> None:
    text = drawn(make_state(num_waiting=2))
    assert "1. cmpl-0500" in text
    assert text.count("out of blocks") == 2


def test_who_waits_for_whom_and_what_is_on_its_way_is_shown() -> None:
    state = make_state(
        1,
        1,
        tiers=[{"name": "store", "records": 12}],
        transfers=[
            {"kind": "write", "count": 3, "oldest_s": 0.25},
            {"kind": "load", "count": 0, "oldest_s": None},
        ],
    )
    state["queue"][0].update(reason="computing", waits_for="cmpl-0000", position=None)
    state["requests"][0].update(state="Loading", reason="loading", arrived=2, pieces=5, age_s=None)
    text = drawn(state, width=140)
    assert "1. cmpl-0500" in text
    assert "computing by cmpl-0000" in text
    assert "loading 2/5" in text
    assert "transfers   write 3 (0.2 s)  store 12 records" in text


@pytest.mark.parametrize("height", [2, 5, 8, 12, 24, 60])
@pytest.mark.parametrize("width", [20, 60, 120])
def test_nothing_is_larger_than_the_terminal(width: int, height: int) -> None:
    state = make_state(40, 30, step_model={"base_us": 12.5}, match_ends={"complete": 3})
    lines = drawn(state, width=width, height=height).splitlines()
    assert len(lines) <= height
    assert max(map(len, lines)) <= width


def test_a_small_terminal_keeps_head_queue_and_the_oldest_requests() -> None:
    text = drawn(make_state(40, 30), width=80, height=14)
    assert "out 1,234.5" in text
    assert "... and" in text
    assert "cmpl-0000" in text
    assert "cmpl-0039" not in text


def test_columns_appear_with_the_width_and_only_for_fields_that_are_sent() -> None:
    state = make_state()
    assert "TENANT" not in drawn(state, width=140)
    state["requests"][0]["tenant"] = "team\x1b[31m-a"
    wide = drawn(state, width=140)
    assert "TENANT" in wide
    assert "\x1b" not in wide
    assert "TENANT" not in drawn(state, width=80)


@pytest.mark.parametrize("width", [80, 90, 100, 120, 140])
def test_names_are_cut_and_numbers_are_not(width: int) -> None:
    names = {"tenant": "acme", "session": "chat:0123456789abcdef", "reason": ""}
    requests = [
        make_request(i, **names, id="chatcmpl-15b26abef443cea749156afa-0", prompt_tokens=123_456)
        for i in range(2)
    ]
    lines = drawn(make_state(requests=requests), width=width).splitlines()
    head, row = lines[-3:-1]
    assert head.split()[:2] == ["STATE", "REQUEST"]
    assert "\u2026" not in head
    assert "123,456" in row
    assert "chatcm" in row
    assert max(map(len, lines)) <= width


def test_drafts_have_a_line_and_alerts_are_shown_before_the_details() -> None:
    drafts = {"speculator": "acme/guess", "state": "detached", "rows": 200, "drafted": 400,
              "accepted": 300}  # fmt: skip
    alert = {"name": "speculator_detached", "since_s": 1.0, "message": "acme/guess failed"}
    text = drawn(make_state(speculation=drafts, alerts=[alert]))
    assert "drafts      acme/guess  300 of 400 right (75.0 %)  2.50 tokens a row  detached" in text
    assert text.index("ALERT       acme/guess failed") < text.index("drafts  ")
    assert "drafts" not in drawn(make_state(speculation=None, alerts=[]))


def test_each_replica_has_a_line_and_one_that_does_not_answer_says_so() -> None:
    one = make_state(2)
    replicas = [
        {"replica": 0, "epoch": 1, **{name: one[name] for name in ("counters", "rates", "blocks")}},
        {"replica": 1, "problem": "the engine did not tell its state in 5.0 s"},
    ]
    requests = [make_request(index, replica=index) for index in range(2)]
    lines = drawn(make_state(2, replicas=replicas, requests=requests)).splitlines()
    (first,) = [line for line in lines if line.startswith("replica 0")]
    assert "running 2  queue 0  out 1,234.5 tok/s" in first
    assert "hit 90.0 %  cache 75.0 %  start 1" in first
    assert any(line.startswith("replica 1   the engine did not tell") for line in lines)
    assert any("REPLICA" in line for line in lines)
