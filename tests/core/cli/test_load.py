"""The load generator's summary: medians, and no rate where no time passed."""

from __future__ import annotations

from tokenspeed.cli.load import Load, Timing, summary, summary_lines


def make_load() -> Load:
    """Describe a small load."""
    return Load("http://x", None, "", 1, num_requests=2, prompt_tokens=4, output_tokens=3, seed=0)


def test_tokens_that_arrive_in_one_piece_have_no_rate() -> None:
    timing = Timing(first_s=0.5, last_s=0.5, num_tokens=3, cached_tokens=0)
    figures = summary(make_load(), [timing], 1.0)
    assert figures["tpot_ms_p50"] == 0
    assert figures["tok_s_per_user_p50"] is None


def test_medians_are_over_requests_and_failures_are_counted() -> None:
    timings = [Timing(first_s=0.1, last_s=0.3, num_tokens=3, cached_tokens=2), "OSError: gone"]
    figures = summary(make_load(), timings, 2.0)
    assert figures["tpot_ms_p50"] == 100.0
    assert figures["tok_s_per_user_p50"] == 10.0
    assert (figures["failed"], figures["first_error"]) == (1, "OSError: gone")
    assert figures["tok_s"] == 1.5


def test_what_the_cache_did_is_summed_and_printed_with_its_reasons() -> None:
    timings: list[Timing | str] = [
        Timing(0.1, 0.3, 3, cached_tokens=10, recomputed_tokens=4, match_ends=("evicted",)),
        Timing(0.1, 0.3, 3, cached_tokens=5, match_ends=("complete",)),
        Timing(0.1, 0.3, 3, cached_tokens=5, match_ends=("complete",)),
        Timing(0.1, 0.3, 3, cached_tokens=1),
    ]
    lines = summary_lines(summary(make_load(), timings, 2.0))
    assert lines[-1].split(maxsplit=1) == [
        "cache",
        "21 tokens cached, 4 recomputed; matches ended: complete 2, evicted 1",
    ]
