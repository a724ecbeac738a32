"""Parts of an answer: the same row however its pieces were merged, one open at a time."""

from __future__ import annotations

import random

import pytest

from tokenspeed.contracts.parser import ToolCallDelta
from tokenspeed.server.parts_of_answer import PartStream, parts_of
from tokenspeed.server.pieces import Piece


def pieces() -> list[Piece]:
    """An answer, a character at a time: thinking, text, two calls."""
    found = [Piece(reasoning=c) for c in "hm so"] + [Piece(text=c) for c in "I call"]
    for index, arguments in enumerate(('{"a": 1}', "{}")):
        opening = ToolCallDelta(index, f"id{index}", "f")
        found.append(Piece(tool_calls=(opening,)))
        found += [Piece(tool_calls=(ToolCallDelta(index, arguments=c),)) for c in arguments]
    return found


def shape(parts: list) -> list[tuple[str, int, str, str]]:
    return [(part.kind, part.number, part.text, part.call_id) for part in parts]


@pytest.mark.parametrize("seed", range(20))
def test_merging_pieces_changes_nothing(seed: int) -> None:
    chooser = random.Random(seed)
    stream, waiting, opened = PartStream(), Piece(), []
    text: dict[int, str] = {}
    for piece in pieces():
        waiting += piece
        if chooser.random() < 0.3:
            changes = list(stream.push(waiting))
            waiting = Piece()
            for change in changes:
                if change.what == "open":
                    assert not opened or opened[-1] == "closed"
                    opened.append(change.part.number)
                elif change.what == "close":
                    opened.append("closed")
                else:
                    text[change.part.number] = text.get(change.part.number, "") + change.text
    for change in (*stream.push(waiting), *stream.finish()):
        if change.what == "grow":
            text[change.part.number] = text.get(change.part.number, "") + change.text
    whole = Piece()
    for piece in pieces():
        whole += piece
    assert shape(stream.parts) == shape(parts_of(whole))
    assert [text[part.number] for part in stream.parts] == [part.text for part in stream.parts]


def test_a_merged_piece_ends_an_open_call_before_its_text() -> None:
    stream = PartStream()
    list(stream.push(Piece(tool_calls=(ToolCallDelta(0, "id", "f", '{"a"'),))))
    later = Piece(text="after", tool_calls=(ToolCallDelta(0, arguments=": 1}"),))
    assert [change.what for change in stream.push(later)] == ["grow", "close", "open", "grow"]
    assert shape(stream.parts) == [("call", 0, '{"a": 1}', "id"), ("text", 1, "after", "")]
