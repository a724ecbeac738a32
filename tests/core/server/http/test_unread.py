"""A reader that is behind costs a bounded number of bytes; then its answer ends, with a reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tokenspeed.contracts.parser import ToolCallDelta
from tokenspeed.contracts.sampler import TokenLogprobs
from tokenspeed.errors import CapacityError
from tokenspeed.server.http.stream import MERGED_PIECES, Mailbox
from tokenspeed.server.http.unread import PIECE_BYTES, Unread, bytes_of
from tokenspeed.server.pieces import Piece, join_pieces

TEXT = "x" * 1000


def taken(mailbox: Mailbox) -> Any:
    return asyncio.run(mailbox.take())


def test_pieces_that_wait_come_as_one_whatever_their_number() -> None:
    unread = Unread()
    mailbox = Mailbox(unread)
    for index in range(3 * MERGED_PIECES + 7):
        call = ToolCallDelta(0, arguments=f"<{index}>")
        mailbox.put(0, Piece(f"{index},", f"r{index}", (call,), num_tokens=1))
    ((choice, piece),) = taken(mailbox)
    numbers = range(3 * MERGED_PIECES + 7)
    assert choice == 0
    assert piece.text == "".join(f"{index}," for index in numbers)
    assert piece.reasoning == "".join(f"r{index}" for index in numbers)
    assert piece.tool_calls[0].arguments == "".join(f"<{index}>" for index in numbers)
    assert piece.num_tokens == len(numbers)
    assert unread.num_bytes == 0


def test_a_reader_that_keeps_up_costs_nothing() -> None:
    unread = Unread(max_answer_bytes=10, max_bytes=10)
    mailbox = Mailbox(unread)
    for _ in range(100):
        mailbox.put(0, Piece(TEXT))
        assert unread.num_bytes == 0
        assert taken(mailbox)[0][1].text == TEXT


def test_what_waits_is_counted_with_its_texts_calls_and_logprobs() -> None:
    entry = TokenLogprobs(1, -0.5, 1, ((1, -0.5), (2, -1.5)))
    call = ToolCallDelta(0, arguments="{}")
    piece = Piece("ab", "c", (call,), logprobs=(entry,))
    assert bytes_of(piece) == PIECE_BYTES + 3 + PIECE_BYTES + 2 + 200 + 2 * 100
    merged = [Piece(TEXT)] * 5
    assert bytes_of(join_pieces(merged)) == PIECE_BYTES + 5000


def test_an_answer_nobody_reads_ends_with_a_reason_and_its_memory_is_free() -> None:
    unread = Unread(max_answer_bytes=100_000, max_bytes=1 << 30)
    mailbox, other = Mailbox(unread), Mailbox(unread)
    other.put(0, Piece(TEXT))
    other.put(0, Piece(TEXT))

    def fill() -> None:
        for _ in range(1000):
            mailbox.put(0, Piece(TEXT))

    with pytest.raises(CapacityError, match=r"does not read: .* of one answer at most 100000 may"):
        fill()
    assert unread.num_cut == 1
    assert mailbox.num_unread_bytes == 0
    assert unread.num_bytes == other.num_unread_bytes > 0
    with pytest.raises(CapacityError):
        taken(mailbox)
    with pytest.raises(CapacityError):
        mailbox.put(1, Piece(TEXT))
    assert taken(other)[0][1].text == 2 * TEXT


def test_when_all_answers_together_are_too_much_the_one_farthest_behind_ends() -> None:
    unread = Unread(max_answer_bytes=1 << 30, max_bytes=120_000)
    slow, slower = Mailbox(unread), Mailbox(unread)
    for _ in range(15):
        slow.put(0, Piece(TEXT))
    for _ in range(60):
        slower.put(0, Piece(TEXT))
    while not unread.num_cut:
        slow.put(0, Piece(TEXT))
    with pytest.raises(CapacityError, match="of all answers together at most 120000"):
        taken(slower)
    assert unread.num_cut == 1
    assert len(taken(slow)[0][1].text) >= 15 * len(TEXT)
    assert unread.num_bytes == 0


def test_a_closed_mailbox_holds_nothing() -> None:
    unread = Unread()
    mailbox = Mailbox(unread)
    for _ in range(10):
        mailbox.put(0, Piece(TEXT))
    assert unread.num_bytes > 0
    mailbox.close()
    assert unread.num_bytes == 0
