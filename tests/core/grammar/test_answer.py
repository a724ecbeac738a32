"""An answer follows its language, goes back after drafts, and fails alone."""

from __future__ import annotations

import numpy as np
import pytest
from tests.support.grammars import ListEngine, ListGrammar

from tokenspeed.contracts.grammar import GrammarSpec
from tokenspeed.grammar import AnswerMasks, GuidedAnswer

V, END, MARK = 70, 69, 68


def grammar(text: str, fault: str = "", error: type[BaseException] = ValueError) -> ListGrammar:
    return ListGrammar(ListEngine(V, END, {text: fault}, error), text)


def answer(
    text: str = "3 1 4",
    fault: str = "",
    error: type[BaseException] = ValueError,
    **options: object,
) -> GuidedAnswer:
    fields = {"stop_ids": (END,), "end_ids": (END,), **options}
    return GuidedAnswer(grammar(text, fault, error), **fields)  # type: ignore[arg-type]


def allowed(item: GuidedAnswer, drafts: tuple[int, ...] = ()) -> list[list[int] | None]:
    """Return the allowed tokens of each position that can be reached; None: every one."""
    masks = np.full((len(drafts) + 1, 3), -1, dtype=np.int32)
    written = item.fill(drafts, masks)
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
    return [np.flatnonzero(bits[i]).tolist() if w else None for i, w in enumerate(written)]


def test_masks_of_drafts_follow_them_and_leave_the_answer_where_it_was() -> None:
    item = answer()
    for _ in range(2):
        assert allowed(item, (3, 1, 9)) == [[3], [1], [4]]
    item.accept((3,))
    assert allowed(item, (1, 4, END)) == [[1], [4], [END]]
    assert allowed(item, (9, 1)) == [[1]], "what follows a wrong draft is never reached"
    item.accept((1, 4))
    assert allowed(item) == [[END]]
    item.accept((END,))
    assert allowed(item) == []
    assert item.failure == ""


def test_an_answer_is_free_until_the_end_of_the_thinking() -> None:
    item = answer(after=(7, 8))
    assert allowed(item, (1, 7, 8, 3)) == [None, None, None, [3], [1]]
    item.accept((7, 7))
    assert allowed(item, (8, 3)) == [None, [3], [1]]
    assert allowed(item, (9, 8)) == [None, None, None]
    item.accept((8,))
    assert allowed(item) == [[3]]


def test_what_is_resumed_stands_where_it_stood() -> None:
    for count in range(7):
        tokens = (5, 7, 8, 3, 1, 4)[:count]
        one, other = answer(after=(7, 8)), answer(after=(7, 8), output_ids=tokens)
        for token in tokens:
            one.accept((token,))
        assert allowed(one) == allowed(other)


def test_a_request_of_its_own_stop_mark_may_end_where_the_language_may() -> None:
    item = answer("3", stop_ids=(END, MARK), marks=(MARK,))
    assert allowed(item) == [[3]]
    item.accept((3,))
    assert allowed(item) == [[MARK, END]]


@pytest.mark.parametrize("error", [ValueError, SystemExit])
@pytest.mark.parametrize("fault", ["matcher", "fill", "accept", "rollback"])
def test_what_the_matcher_raises_is_the_answers_failure(
    fault: str, error: type[BaseException]
) -> None:
    item = answer(fault=fault, error=error)
    if not item.failure:
        item.accept((3,))
        allowed(item, (1,))
        item.accept((1,))
    assert f"planted in {fault}" in item.failure
    assert allowed(item, (4,)) == []


def test_a_matcher_that_denies_what_its_mask_allowed_fails_the_answer() -> None:
    item = answer()
    item.accept((5,))
    assert "token 5" in item.failure


def test_masks_of_a_step_stand_at_the_positions_of_their_rows() -> None:
    masks = AnswerMasks(V, (END,), frozenset({END}))
    masks.admit(4, grammar("3 1"), stop_ids=(END,))
    masks.admit(2, grammar("5"), stop_ids=(END,), output_ids=(5,))
    pending = masks.start((1, 4, 2), ((), (3,), ()))
    assert pending is not None
    made = pending.result()
    assert made is not None
    assert made.positions_K.tolist() == [1, 2, 3]
    assert made.ending_K.tolist() == [False, False, True]
    bits = np.unpackbits(made.words_KW.view(np.uint8), axis=1, bitorder="little")
    assert [np.flatnonzero(row).tolist() for row in bits] == [[3], [1], [END]]
    assert masks.start((1, 3), ((), ())) is None
    masks.admit(4, None)
    masks.admit(2, None)
    assert masks.start((4, 2), ((), ())) is None


def test_specs_of_one_language_are_equal_whatever_comes_before_it() -> None:
    assert GrammarSpec("regex", "a", after=(1,)) != GrammarSpec("regex", "a")
    assert hash(GrammarSpec("regex", "a")) == hash(GrammarSpec("regex", "a"))
