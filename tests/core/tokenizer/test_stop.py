"""StopMatcher equals a naive search, however the text is cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tokenspeed.tokenizer import StopMatcher


def naive(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """Look at every prefix of the text, shortest first."""
    for end in range(len(text) + 1):
        ended = [stop for stop in stops if text[:end].endswith(stop)]
        if ended:
            stop = max(ended, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


def run(chunks: list[str], stops: list[str], include: bool) -> tuple[str, str | None]:
    matcher = StopMatcher(stops, include_stop_text=include)
    out = ""
    for chunk in chunks:
        emitted, matched = matcher.push(chunk)
        out += emitted
        if matched is not None:
            return out, matched
    return out + matcher.flush(), None


@settings(max_examples=600, deadline=None)
@given(
    st.lists(st.text("ab\u00e9", max_size=5), max_size=8),
    st.lists(st.text("ab\u00e9", min_size=1, max_size=4), max_size=4),
    st.booleans(),
)
def test_any_cut_equals_the_naive_search(
    chunks: list[str], stops: list[str], include: bool
) -> None:
    assert run(chunks, stops, include) == naive("".join(chunks), stops, include)


@settings(max_examples=300, deadline=None)
@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_only_possible_beginnings_are_held_back(text: str, stops: list[str]) -> None:
    matcher = StopMatcher(stops)
    emitted, matched = matcher.push(text)
    held = text[len(emitted) :]
    assert matched is not None or not held or any(stop.startswith(held) for stop in stops)


def test_the_match_completed_first_wins_and_ties_go_to_the_longer() -> None:
    assert run(["xabcd"], ["abcd", "bc"], False) == ("xa", "bc")
    assert run(["xabc"], ["bc", "abc"], False) == ("x", "abc")


def test_nothing_is_emitted_after_a_match() -> None:
    matcher = StopMatcher(["\n"])
    assert matcher.push("one\ntwo") == ("one", "\n")
    assert matcher.push("three") == ("", "\n")
    assert matcher.flush() == ""


def test_the_stop_text_is_kept_on_request() -> None:
    assert run(["a EN", "D b"], ["END"], True) == ("a END", "END")
