"""Budgets of thinking, token by token: where they force the end, and where they do nothing.

Tokens are bytes here: "<t>" opens, "</t>" ends, unless a test says otherwise.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import numpy as np
import pytest
from msgspec.structs import replace

from tokenspeed.contracts.thinking import ThinkingBudget
from tokenspeed.errors import RequestError
from tokenspeed.grammar import AnswerMasks
from tokenspeed.grammar.thinking import BudgetedThinking
from tokenspeed.sampling import SamplingParams

if TYPE_CHECKING:
    from collections.abc import Sequence

V = 256
W = V // 32
BYTES = [bytes([token]) for token in range(V)]
OPEN, END, START, CHANNEL, WORD, BODY = 1, 2, 3, 4, 5, 6
"""Marks of a format whose thinking may be opened again."""


def ids(text: str) -> tuple[int, ...]:
    return tuple(text.encode())


def budget(tokens: int, *, is_open: bool = False, calls: bool = False) -> ThinkingBudget:
    ends = (ids("</t>"), ids("<call>")) if calls else (ids("</t>"),)
    return ThinkingBudget(tokens, ids("</t>"), ends, ids("<t>"), spaces=ids(" \n"), is_open=is_open)


def written(thinking: BudgetedThinking, wish: str) -> str:
    """Return what comes of a model that wishes to write a text and goes on where it was cut.

    It wishes for its next character; where another one is forced, that one is written, and the
    model goes on with what is left behind its own end of the thinking.
    """
    said, left = "", list(wish)
    while left or forced(thinking) is not None:
        token = forced(thinking)
        if token is None:
            character = left.pop(0)
        else:
            character = chr(token)
            if left and left[0] == character:
                left.pop(0)
        said += character
        thinking.accept(ids(character))
        if said.endswith("</t>") and "</t>" in "".join(left):
            left = list("".join(left).split("</t>", 1)[1])
    return said


def allowed(thinking: BudgetedThinking, drafts: Sequence[int] = ()) -> list[list[int] | None]:
    """Return the tokens that may come next, and behind each draft; None: all."""
    masks = np.zeros((len(drafts) + 1, W), np.int32)
    is_written = [False] * (len(drafts) + 1)
    thinking.restrict(drafts, masks, is_written)
    bits = np.unpackbits(masks.view(np.uint8), axis=1, bitorder="little")
    return [
        np.flatnonzero(row).tolist() if is_masked else None
        for row, is_masked in zip(bits, is_written, strict=True)
    ]


def forced(thinking: BudgetedThinking) -> int | None:
    (tokens,) = allowed(thinking)
    assert tokens is None or len(tokens) == 1
    return None if tokens is None else tokens[0]


@pytest.mark.parametrize(
    ("wish", "num", "answer"),
    [
        ("<t>abcdefghij</t>Four.", 5, "<t>abcde</t>Four."),
        ("<t>abcdefghij</t>Four.", 1, "<t>a</t>Four."),
        ("<t>abcdefghij</t>Four.", 0, "<t></t>Four."),
        (" \n<t>abcdef</t>Four.", 2, " \n<t>ab</t>Four."),
        ("<t>abcde</t>Four.", 5, "<t>abcde</t>Four."),
        ("<t>abcd</t>Four.", 5, "<t>abcd</t>Four."),
        ("<t>a</t>Four.", 5, "<t>a</t>Four."),
        ("<t>a</t>Four. <t>is no thought here", 5, "<t>a</t>Four. <t>is no thought here"),
        ("No <t>thought</t> at all", 2, "No <t>thought</t> at all"),
        ("<tag> is no thought", 2, "<tag> is no thought"),
    ],
)
def test_the_end_is_written_when_the_budget_is_used_up(wish: str, num: int, answer: str) -> None:
    assert written(BudgetedThinking(budget(num), BYTES), wish) == answer


def test_a_block_that_the_prompt_opened_is_bounded_from_the_first_token() -> None:
    wish = "abcdefghij</t>Four."
    assert written(BudgetedThinking(budget(3, is_open=True), BYTES), wish) == "abc</t>Four."
    assert written(BudgetedThinking(budget(0, is_open=True), BYTES), wish) == "</t>Four."
    assert written(BudgetedThinking(budget(10, is_open=True), BYTES), wish) == wish


def test_a_call_ends_the_thinking_where_calls_are_looked_for() -> None:
    wish = "<t>ab<call>f(x, y, z)"
    assert written(BudgetedThinking(budget(9, calls=True), BYTES), wish) == wish
    assert written(BudgetedThinking(budget(9), BYTES), wish).startswith("<t>ab<call>f</t>")


def test_an_end_of_other_pieces_is_seen_in_the_text() -> None:
    """A model may write the mark with tokens that reach into what stands around it."""
    spelled = [b"", b"x</", b"t>\n", b"x"]
    thinking = BudgetedThinking(ThinkingBudget(4, (4, 5), ((4, 5),), is_open=True), [
        *spelled, b"</", b"t>"])  # fmt: skip
    thinking.accept((3, 1, 2, 3, 3, 3, 3))
    assert thinking.is_done


def test_a_draft_that_is_no_token_is_passed_over() -> None:
    thinking = BudgetedThinking(budget(3, is_open=True), BYTES)
    assert allowed(thinking, (V + 5, 97)) == [None, None, None]


def test_the_place_is_a_function_of_the_tokens() -> None:
    rng = random.Random(5)
    for _ in range(200):
        tokens = [rng.choice(ids("<t>/ a")) for _ in range(30)]
        one, num = BudgetedThinking(budget(4), BYTES), rng.randrange(30)
        for token in tokens:
            one.accept((token,))
        other = BudgetedThinking(budget(4), BYTES, tokens[:num])
        other.accept(tokens[num:])
        assert allowed(one) == allowed(other)
        assert one.is_done == other.is_done


def test_masks_behind_drafts_are_those_of_the_tokens_themselves() -> None:
    rng = random.Random(6)
    for _ in range(200):
        tokens = [*ids("<t>"), *(rng.choice(ids("ab</t>")) for _ in range(12))]
        num = rng.randrange(3, 10)
        thinking = BudgetedThinking(budget(3), BYTES, tokens[:num])
        drafts = tokens[num : num + 4]
        ahead = allowed(thinking, drafts)
        for taken, mask in enumerate(ahead):
            assert allowed(BudgetedThinking(budget(3), BYTES, tokens[: num + taken])) == [mask]
            if mask is not None and taken < len(drafts) and drafts[taken] not in mask:
                break  # no draft behind it can be right


def test_thinking_that_opens_again_is_counted_on_and_then_kept_shut() -> None:
    form = ThinkingBudget(
        3,
        close=(END, START),
        ends=((END,), (START,), (CHANNEL,)),
        opens=(CHANNEL, WORD, BODY),
        is_repeated=True,
    )
    thinking = BudgetedThinking(form)
    thinking.accept((CHANNEL, WORD, BODY, 50, 51, END, START))
    assert allowed(thinking) == [None]
    thinking.accept((CHANNEL,))
    assert allowed(thinking) == [None]
    thinking.accept((WORD, BODY, 52))
    assert allowed(thinking, (END, START)) == [[END], [START], None]
    thinking.accept((END, START, CHANNEL))
    (mask,) = allowed(thinking)
    assert mask is not None
    assert set(range(V)) - set(mask) == {WORD}
    thinking.accept((60, BODY, 61))
    assert allowed(thinking) == [None]
    assert not thinking.is_done


def test_a_budget_stands_beside_no_grammar_and_is_forgotten_when_it_is_over() -> None:
    masks = AnswerMasks(V, (END,), frozenset({END}), BYTES)
    masks.admit(1, None, thinking=budget(1, is_open=True), output_ids=ids("a"))
    pending = masks.start((0, 1), ((), ids("</")))
    assert pending is not None
    made = pending.result()
    assert made is not None
    assert made.positions_K.tolist() == [1, 2, 3]
    bits = np.unpackbits(made.words_KW.view(np.uint8), axis=1, bitorder="little")
    assert [chr(int(np.flatnonzero(row)[0])) for row in bits] == ["<", "/", "t"]
    assert not made.ending_K.any()
    masks.accept(1, ids("</t>"))
    assert masks.is_empty


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tokens": -1}, "thinking.tokens"),
        ({"close": ()}, "thinking"),
        ({"ends": ((),)}, "thinking"),
        ({"opens": (V,)}, "thinking"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(fields: dict[str, object], param: str) -> None:
    params = SamplingParams(thinking=replace(budget(1), **fields))
    with pytest.raises(RequestError) as caught:
        params.validate(V)
    assert caught.value.param == param
