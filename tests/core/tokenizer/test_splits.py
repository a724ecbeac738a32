"""Cutting a long text at line ends and words keeps the ids, for every split that is recognised."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import tokenizers
from tests.support.texts import random_text
from tests.support.tokenizer_files import write_bpe_gguf
from tokenizers import AddedToken, models, normalizers, pre_tokenizers

from tokenspeed.tokenizer import EncodeCache, Tokenizer, load_tokenizer, splits


def lines(rng: random.Random, num_lines: int) -> str:
    """Join random lines, most of which end and begin so that they can be cut."""
    ends = [
        "a ",
        "it's ",
        "z  ",
        "5 ",
        "\u00e9 ",
        ") ",
        "\n",
        "a\n",
        "1\n",
        "!?\n",
        ";\n",
        "\n\n",
        " \n",
        "\r\n",
        "\u00e9\n",
        "\t\n",
    ]
    begins = ["x", "Y", "'s", "'", " z", "\u0301", "9", "_", ""]
    return "".join(
        random_text(rng, rng.randint(0, 4), ("<think>",)) + rng.choice(ends) + rng.choice(begins)
        for _ in range(num_lines)
    )


@pytest.mark.parametrize("pre", list(splits.SPLITS))
def test_chunked_ids_equal_whole_ids(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pre: str
) -> None:
    tokenizer = load_tokenizer(write_bpe_gguf(tmp_path / "m.gguf", pre))
    assert splits.can_cut(tokenizer.backend)
    assert_chunks_are_exact(tokenizer, monkeypatch)


def test_chunked_ids_equal_whole_ids_behind_nfc_and_digits(
    bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = tokenizers.Tokenizer.from_str(bpe.backend.to_str())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    assert splits.can_cut(backend)
    assert_chunks_are_exact(Tokenizer(backend, name="digits"), monkeypatch)


def assert_chunks_are_exact(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "_CHUNK_CHARS", 1)
    rng = random.Random(12)
    num_chunks = 0
    for _ in range(500):
        text = lines(rng, 20)
        num_chunks += len(list(splits.chunks(text)))
        expected = tokenizer.encode(text, add_special_tokens=False)
        assert list(EncodeCache(tokenizer).encode(text)) == expected, ascii(text)
    assert num_chunks > 1500


def test_a_long_text_of_words_is_cut_into_short_parts() -> None:
    text = "some words and no line at all " * 20_000
    parts = list(splits.chunks(text))
    assert "".join(parts) == text
    assert max(map(len, parts)) < 2 * splits._CHUNK_CHARS


def test_a_text_without_a_cut_stays_whole() -> None:
    text = "word " + "\u4e00" * 3 * splits._CHUNK_CHARS
    assert list(splits.chunks(text)) == [text]


def test_tokenizers_that_see_across_lines_are_not_cut(spm: Tokenizer, bpe: Tokenizer) -> None:
    assert not splits.can_cut(spm.backend)
    for token in (
        AddedToken("a\nb"),
        AddedToken("a b"),
        AddedToken("[mask]", lstrip=True),
        AddedToken("[mask]", rstrip=True),
    ):
        backend = tokenizers.Tokenizer.from_str(bpe.backend.to_str())
        backend.add_tokens([token])
        assert not splits.can_cut(backend)
    assert not splits.can_cut(tokenizers.Tokenizer(models.BPE()))
