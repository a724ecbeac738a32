"""Placement rules as text: what they say, and what is refused."""

from __future__ import annotations

import pytest

from tokenspeed.errors import PlacementError
from tokenspeed.placement.notation import Letters, Pattern
from tokenspeed.placement.rule import parse


def test_dimensions_marks_and_clauses_are_read() -> None:
    rule = parse("~T 2F, -, E[T X!], _ 1 -> T F X!; K<N, X=routing.top_k".replace("K<N", "F<T"))
    x, nothing, chosen, table = rule.inputs
    assert x == Pattern((Letters("T"), Letters("F", count=2)), is_linear=True)
    assert nothing is None
    assert chosen == Pattern((Letters("T"), Letters("X", is_whole=True)), counted="E")
    last = Letters("1", is_whole=True, size=1)
    assert table == Pattern((Letters("_0", is_whole=True), last))
    assert rule.outputs == (Pattern((Letters("T"), Letters("F"), Letters("X", is_whole=True))),)
    assert (rule.shared, rule.options) == ((("F", "T"),), (("X", "routing.top_k"),))


def test_a_letter_that_no_result_has_is_summed_over() -> None:
    assert parse("~T I, O I, ~O -> T O").summed == {"I"}
    assert parse("T D!, E 2F D! -> T D!").summed == {"E", "F"}


def test_a_shared_letter_is_not_summed_over() -> None:
    assert parse("Q N H!, T K H! -> Q N H!; K<N, T<Q").summed == set()


def test_a_rule_may_have_no_results() -> None:
    assert parse("T K H!, - ->").outputs == ()


def test_a_text_is_read_once() -> None:
    assert parse("T N -> T N") is parse("T N -> T N")


@pytest.mark.parametrize(
    ("text", "found", "expected"),
    [
        ("T N", "'T N'", "arguments -> results"),
        ("T n -> T n", "'n'", "a dimension such as"),
        ("T N -> T N; K-N", "'K-N'", "a clause such as"),
        ("T N -> T N; K<N", "'K'", "a letter of an argument"),
        ("T D! -> T D", "'D'", "D! everywhere or nowhere"),
        ("T ... -> T", r"'T \.\.\.'", r"\.\.\. before all other dimensions"),
        ("T -> ~T", "'~T'", "results of plain dimensions"),
        ("T -> -", "'-'", "results of plain dimensions"),
    ],
)
def test_what_is_not_in_the_notation_is_shown(text: str, found: str, expected: str) -> None:
    with pytest.raises(PlacementError, match=f"found {found}, expected {expected}"):
        parse(text)
