"""Token ids to text while they arrive: whole characters only, equal to decoding all at once.

Byte-level and SPM tokens are spelled here, at a cost that depends on the new tokens only; for
other decoders the library decodes a short window. One object per stream.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from typing import Protocol

from tokenspeed.tokenizer.pieces import SPM_SPACE, byte_level_bytes, fallback_byte
from tokenspeed.tokenizer.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"


class _Speller(Protocol):
    """Turns vocabulary entries into text; `finish` releases what waited for more."""

    def spell(self, token_id: int, piece: str) -> str: ...

    def finish(self) -> str: ...


class Detokenizer:
    """One stream of tokens.

    The texts of all pushes and the flush, joined, equal `Tokenizer.decode` of all ids.

    Args:
        tokenizer: whose ids are pushed.
        skip_special_tokens: leave special tokens out of the text.
        shown_ids: special tokens that are not left out.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        shown_ids: frozenset[int] = frozenset(),
    ) -> None:
        self._piece_of = tokenizer.backend.id_to_token
        hidden = tokenizer.special_token_ids if skip_special_tokens else frozenset()
        self._skipped = hidden - shown_ids
        self._speller = _make_speller(tokenizer)

    def push(self, token_ids: Iterable[int]) -> str:
        """Take the next ids; return the text that is now certain."""
        texts: list[str] = []
        for token_id in token_ids:
            piece = self._piece_of(token_id)
            if piece is not None and token_id not in self._skipped:
                texts.append(self._speller.spell(token_id, piece))
        return "".join(texts)

    def flush(self) -> str:
        """Return what waited for more bytes; incomplete characters become U+FFFD."""
        return self._speller.finish()


def _make_speller(tokenizer: Tokenizer) -> _Speller:
    if tokenizer.decoder_kind == "bytes":
        return _ByteLevelSpeller()
    if tokenizer.decoder_kind == "spm":
        return _SpmSpeller(strips_space=tokenizer.decoder_strips_space)
    return _WindowSpeller(tokenizer)


class _ByteLevelSpeller:
    """Byte-level BPE: tokens are bytes, the text is their UTF-8."""

    def __init__(self) -> None:
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def spell(self, token_id: int, piece: str) -> str:
        return self._utf8.decode(byte_level_bytes(piece))

    def finish(self) -> str:
        text = self._utf8.decode(b"", final=True)
        self._utf8.reset()
        return text


class _SpmSpeller:
    """SentencePiece with byte fallback.

    A run of byte pieces is one unit: its UTF-8, or one U+FFFD per byte when it is not UTF-8 as a
    whole. So a run waits for the piece behind it.
    """

    def __init__(self, *, strips_space: bool) -> None:
        self._run = bytearray()
        self._strips_space = strips_space

    def spell(self, token_id: int, piece: str) -> str:
        value = fallback_byte(piece)
        if value is not None:
            self._run.append(value)
            return ""
        return self._end_run() + self._stripped(piece.replace(SPM_SPACE, " "))

    def finish(self) -> str:
        return self._end_run()

    def _end_run(self) -> str:
        if not self._run:
            return ""
        try:
            text = self._run.decode()
        except UnicodeDecodeError:
            text = REPLACEMENT * len(self._run)
        self._run.clear()
        return self._stripped(text)

    def _stripped(self, text: str) -> str:
        """Take one space off the head of the whole text."""
        if not self._strips_space or not text:
            return text
        self._strips_space = False
        return text.removeprefix(" ")


class _WindowSpeller:
    """Any other decoder: decode the last emitted ids together with the new ones.

    The ids of the last emission are context, because some decoders look at a neighbour.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._pending: list[int] = []

    def spell(self, token_id: int, piece: str) -> str:
        self._pending.append(token_id)
        delta = self._delta()
        if not delta or delta.endswith(REPLACEMENT):
            return ""
        self._context, self._pending = self._pending, []
        return delta

    def finish(self) -> str:
        delta = self._delta()
        self._context, self._pending = self._pending, []
        return delta

    def _delta(self) -> str:
        before = self._tokenizer.decode(self._context, skip_special_tokens=False)
        after = self._tokenizer.decode(self._context + self._pending, skip_special_tokens=False)
        return after[len(before) :]
