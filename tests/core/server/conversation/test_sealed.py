"""Seals of thinking: what was packed comes back, and nothing else does harm."""

from __future__ import annotations

import base64
import zlib

import pytest

from tokenspeed.server.conversation.sealed import MAX_PACKED_CHARS, pack, sign, unpack


@pytest.mark.parametrize("text", ["", "I think.", "\u00e9\u4e2d\U0001f600" * 1000])
def test_what_was_packed_comes_back(text: str) -> None:
    assert unpack(pack(text)) == text


def test_a_signature_holds_no_text_and_is_the_texts_own() -> None:
    assert unpack(sign("a")) == ""
    assert sign("a") == sign("a") != sign("b")


@pytest.mark.parametrize(
    "seal", ["", "gAAAAAB", "tsp1", "tsp1p", "tsp1p====", "tsp1pAAAA", "tsp1p\u00e9"]
)
def test_what_others_sealed_is_nothing(seal: str) -> None:
    assert unpack(seal) == ""


def test_a_bomb_is_cut() -> None:
    bomb = base64.urlsafe_b64encode(zlib.compress(b"x" * (64 << 20))).decode()
    assert len(unpack("tsp1p" + bomb)) == MAX_PACKED_CHARS
