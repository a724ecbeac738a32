"""Pieces add up, and a mailbox merges what nobody has taken."""

from __future__ import annotations

import asyncio

import pytest
from tests.support.scripted import IM_END, ids_of, write_scripted_model

from tokenspeed.contracts.parser import BadToolCall, ParsedDelta, ToolCallDelta
from tokenspeed.engine.messages import Delta
from tokenspeed.errors import EngineError, ToolCallError
from tokenspeed.sampling.params import SamplingParams
from tokenspeed.server.http.stream import Mailbox
from tokenspeed.server.pieces import Piece, TextAssembler, read
from tokenspeed.tokenizer.load import load_tokenizer
from tokenspeed.tokenizer.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return load_tokenizer(write_scripted_model(tmp_path_factory.mktemp("pieces") / "model"))


def whole(
    tokenizer: Tokenizer, params: SamplingParams, cuts: list[str], *, last: str | None = "length"
) -> Piece:
    assembler = TextAssembler(tokenizer, params, frozenset({IM_END}))
    total = Piece()
    for index, text in enumerate(cuts):
        reason = last if index == len(cuts) - 1 else None
        delta = Delta(request_id="r", tokens=tuple(ids_of(text)), finish_reason=reason)
        total += assembler.push(delta)
        if total.finish_reason is not None:
            break
    return total


@pytest.mark.parametrize("cuts", [["a stop b"], ["a st", "op b"], list("a stop b")])
def test_a_stop_string_ends_at_the_same_place_for_every_cut(
    tokenizer: Tokenizer, cuts: list[str]
) -> None:
    piece = whole(tokenizer, SamplingParams(stop=("stop",)), cuts)
    assert (piece.text, piece.finish_reason, piece.num_tokens) == ("a ", "stop", 6)


def test_a_held_back_prefix_of_a_stop_string_comes_with_the_end(tokenizer: Tokenizer) -> None:
    piece = whole(tokenizer, SamplingParams(stop=("stop",)), ["a st"])
    assert (piece.text, piece.finish_reason) == ("a st", "length")


def test_a_character_of_several_tokens_is_never_cut(tokenizer: Tokenizer) -> None:
    ids = ids_of("\N{SNOWMAN}")
    assert len(ids) == 3
    assembler = TextAssembler(tokenizer, SamplingParams(), frozenset())
    texts = [assembler.push(Delta(request_id="r", tokens=(token,))).text for token in ids]
    assert texts == ["", "", "\N{SNOWMAN}"]


def test_an_engine_error_is_raised(tokenizer: Tokenizer) -> None:
    assembler = TextAssembler(tokenizer, SamplingParams(), frozenset())
    with pytest.raises(EngineError, match="NaN"):
        assembler.push(Delta(request_id="r", finish_reason="error", error="NaN logits"))


def test_a_mailbox_merges_by_choice_and_fails_after_what_came_before() -> None:
    async def scenario() -> None:
        mailbox = Mailbox()
        assert await mailbox.take(0.01) == []
        mailbox.put(1, Piece("b", num_tokens=1))
        mailbox.put(0, Piece("x", num_tokens=1))
        mailbox.put(1, Piece("c", num_tokens=1, finish_reason="stop"))
        mailbox.fail(EngineError("gone"))
        assert await mailbox.take(1) == [
            (0, Piece("x", num_tokens=1)),
            (1, Piece("bc", num_tokens=2, finish_reason="stop")),
        ]
        with pytest.raises(EngineError, match="gone"):
            await mailbox.take(1)

    asyncio.run(scenario())


@pytest.mark.parametrize("steps", range(6))
def test_a_reader_cancelled_right_after_a_piece_came_ends(steps: int) -> None:
    """A client that goes away while tokens come; the cancellation must not be lost."""

    async def scenario() -> None:
        mailbox = Mailbox()

        async def read() -> None:
            while True:
                await mailbox.take(5)

        reader = asyncio.create_task(read())
        await asyncio.sleep(0.001)
        mailbox.put(0, Piece("x", num_tokens=1))
        for _ in range(steps):
            await asyncio.sleep(0)
        reader.cancel()
        await asyncio.wait([reader], timeout=60)
        assert reader.cancelled()

    asyncio.run(scenario())


def test_deltas_of_one_tool_call_add_up_by_index() -> None:
    first = read(ParsedDelta(tool_calls=(ToolCallDelta(0, "call_a", "f", '{"x"'),)))
    both = (ToolCallDelta(0, arguments=": 1"), ToolCallDelta(0, arguments="}"))
    second = read(ParsedDelta(tool_calls=(*both, ToolCallDelta(1, "call_b", "g", "{}"))))
    whole_calls = (
        ToolCallDelta(0, "call_a", "f", '{"x": 1}'),
        ToolCallDelta(1, "call_b", "g", "{}"),
    )
    assert (first + second).tool_calls == whole_calls


def test_a_call_that_cannot_be_read_is_an_error_that_shows_it() -> None:
    bad = BadToolCall("arguments are no JSON object", "<tool_call>x")
    with pytest.raises(ToolCallError, match=r"arguments are no JSON object.*<tool_call>") as caught:
        read(ParsedDelta("hm", "a", bad_call=bad))
    assert caught.value.text == "<tool_call>x"


def test_an_unfinished_call_is_no_error_where_the_length_cut_the_answer() -> None:
    cut = ParsedDelta(
        bad_call=BadToolCall("the answer ends inside it", "<tool", is_unfinished=True)
    )
    assert read(cut, is_cut=True) == Piece()
    with pytest.raises(ToolCallError):
        read(cut)
    wrong = ParsedDelta(bad_call=BadToolCall("it calls 'x'", "<tool"))
    with pytest.raises(ToolCallError):
        read(wrong, is_cut=True)
