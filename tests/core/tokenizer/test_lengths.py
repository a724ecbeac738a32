"""The most characters a token stands for bounds every text from above."""

from __future__ import annotations

from tests.support.texts import random_texts, trained_bpe
from tokenizers import AddedToken, Tokenizer, normalizers

from tokenspeed.tokenizer.lengths import UNKNOWN_CHARS, max_token_chars


def test_no_text_has_more_characters_a_token() -> None:
    backend = trained_bpe()
    most = max_token_chars(backend)
    assert most < 64
    for text in random_texts(3, 300):
        assert len(text) <= most * len(backend.encode(text).ids)


def test_composition_and_absorbed_spaces_are_counted() -> None:
    plain = max_token_chars(trained_bpe())
    composed = Tokenizer.from_str(trained_bpe().to_str())
    composed.normalizer = normalizers.NFC()
    assert max_token_chars(composed) == 4 * plain
    composed.add_special_tokens([AddedToken("<mask>", lstrip=True)])
    assert max_token_chars(composed) >= UNKNOWN_CHARS
