"""Usage: what the cache did, for one prompt and for several with choices."""

from __future__ import annotations

from array import array

from tokenspeed.engine.messages import CacheReport
from tokenspeed.server.conversation.prompts import Prompt
from tokenspeed.server.openai.replies import usage
from tokenspeed.server.pieces import Piece


def prompt(num_tokens: int) -> Prompt:
    return Prompt(array("i", range(num_tokens)), None)


def test_each_prompt_counts_once_with_its_best_choice() -> None:
    reports = [
        CacheReport(0, 10, 0, 0, "never_stored"),
        CacheReport(8, 2, 0, 8, "computing"),
        CacheReport(4, 10, 6, 4, "evicted"),
        CacheReport(3, 11, 6, 3, "content"),
    ]
    pieces = [
        Piece("x", num_tokens=5, cached_tokens=report.cached, cache=report) for report in reports
    ]
    counts = usage([prompt(10), prompt(20)], pieces)
    assert (counts["prompt_tokens"], counts["completion_tokens"]) == (30, 20)
    assert counts["prompt_tokens_details"] == {
        "cached_tokens": 12,
        "cache_write_tokens": 18,
        "recomputed_tokens": 6,
        "match_ends": [
            {"position": 8, "reason": "computing"},
            {"position": 4, "reason": "evicted"},
        ],
    }


def test_without_reports_only_cached_tokens_are_named() -> None:
    pieces = [Piece("x", num_tokens=1, cached_tokens=-1)]
    assert usage([prompt(3)], pieces)["prompt_tokens_details"] == {"cached_tokens": 0}


def test_a_report_survives_the_merging_of_pieces() -> None:
    report = CacheReport(1, 2, 0, 1, "content")
    assert (Piece("a", cache=report) + Piece("b")).cache is report


def test_guessed_tokens_are_told_where_there_were_any() -> None:
    piece = Piece("a", num_tokens=4, drafts=(5, 3)) + Piece("b", num_tokens=1, drafts=(2, 0))
    counts = usage([prompt(3)], [piece, Piece("c", num_tokens=2)])
    assert counts["completion_tokens_details"] == {
        "accepted_prediction_tokens": 3,
        "rejected_prediction_tokens": 4,
    }
    assert "completion_tokens_details" not in usage([prompt(3)], [Piece("c", num_tokens=2)])
