"""Streaming equals decoding at once, for any ids and any cut, and never splits a character."""

from __future__ import annotations

import json
import random
import time

import pytest
import tokenizers
from tests.support.texts import random_texts
from tokenizers import decoders, models, pre_tokenizers

from tokenspeed.tokenizer import Detokenizer, Tokenizer

# The last ones are in no training text, so that they are spelled in bytes.
EMOJI = "\U0001f468\u200d\U0001f469 \u4f60\u597d caf\u00e9 \U0001f1e9\U0001f1ea\U0001f9a6\u9f98"


def stream(tokenizer: Tokenizer, ids: list[int], rng: random.Random, skip: bool) -> str:
    """Push the ids in random cuts."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=skip)
    out, start = "", 0
    while start < len(ids):
        end = start + rng.randint(1, 3)
        out += detokenizer.push(ids[start:end])
        start = end
    return out + detokenizer.flush()


def assert_equal_to_decode(tokenizer: Tokenizer, sequences: list[list[int]]) -> None:
    rng = random.Random(3)
    for ids in sequences:
        for skip in (True, False):
            expected = tokenizer.decode(ids, skip_special_tokens=skip)
            assert stream(tokenizer, ids, rng, skip) == expected, ids


def random_ids(tokenizer: Tokenizer, count: int) -> list[list[int]]:
    """Ids at random are mostly broken UTF-8; a few are outside the vocabulary."""
    rng = random.Random(4)
    top = tokenizer.vocab_size + 3
    return [[rng.randrange(top) for _ in range(rng.randint(1, 20))] for _ in range(count)]


@pytest.mark.parametrize("kind", ["bpe", "spm"])
def test_texts_and_random_ids_stream_as_they_decode(
    kind: str, request: pytest.FixtureRequest
) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    texts = [*random_texts(5, 800), EMOJI, " leading", "  two", "", " "]
    assert_equal_to_decode(tokenizer, [tokenizer.encode(text) for text in texts])
    assert_equal_to_decode(tokenizer, random_ids(tokenizer, 800))


def test_byte_runs_of_spm_stream_as_they_decode(spm: Tokenizer) -> None:
    rng = random.Random(6)
    first_byte = spm.encode("\x00", add_special_tokens=False)[-1]
    for _ in range(800):
        data = bytearray("a\u4f60\U0001f600".encode() * rng.randint(0, 2))
        if data and rng.random() < 0.5:
            del data[rng.randrange(len(data))]
        ids = [first_byte + byte for byte in data]
        ids.insert(rng.randint(0, len(ids)), spm.encode("fox")[-1])
        assert_equal_to_decode(spm, [ids])


def test_other_decoders_stream_through_a_window() -> None:
    vocab = {"[UNK]": 0, "play": 1, "##ing": 2, "now": 3, ".": 4}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.decoder = decoders.WordPiece(cleanup=False)
    tokenizer = Tokenizer(backend, name="wordpiece")
    assert tokenizer.decoder_kind == "other"
    assert_equal_to_decode(tokenizer, [[1, 2, 3, 4], [3, 1, 2], [2, 2, 1]])


@pytest.mark.parametrize("kind", ["bpe", "spm"])
def test_a_character_is_never_sent_in_parts(kind: str, request: pytest.FixtureRequest) -> None:
    tokenizer: Tokenizer = request.getfixturevalue(kind)
    detokenizer = Detokenizer(tokenizer)
    deltas = [detokenizer.push([token_id]) for token_id in tokenizer.encode(EMOJI)]
    assert "\ufffd" not in "".join(deltas)
    assert "".join(deltas) + detokenizer.flush() == EMOJI
    assert "" in deltas


def test_a_cut_character_is_flushed_as_a_replacement(bpe: Tokenizer) -> None:
    ids = bpe.encode("a\U0001d7d8")
    detokenizer = Detokenizer(bpe)
    assert detokenizer.push(ids[:-1]) == "a"
    assert detokenizer.flush() == bpe.decode(ids[:-1])[1:]


def test_cost_of_a_push_does_not_grow_with_the_stream(bpe: Tokenizer) -> None:
    ids = bpe.encode("the quick brown fox " * 4000)
    detokenizer = Detokenizer(bpe)
    times = []
    for start in range(0, len(ids), len(ids) // 10):
        began = time.process_time()
        detokenizer.push(ids[start : start + len(ids) // 10])
        times.append(time.process_time() - began)
    assert max(times[5:]) < 5 * max(min(times[:5]), 0.001)


def test_token_bytes_of_a_text_join_to_its_utf8(bpe: Tokenizer, spm: Tokenizer) -> None:
    text = "caf\u00e9 \U0001f600 <|im_end|>\u4f60"
    assert b"".join(bpe.token_bytes(i) for i in bpe.encode(text)) == text.encode()
    assert b"".join(spm.token_bytes(i) for i in spm.encode(text)[1:]) == b" " + text.encode()
    assert bpe.token_text(bpe.vocab_size + 5) == ""


def test_decoder_kind_reads_what_the_library_wrote(bpe: Tokenizer, spm: Tokenizer) -> None:
    assert (bpe.decoder_kind, spm.decoder_kind) == ("bytes", "spm")
    assert spm.decoder_strips_space
    assert json.loads(spm.backend.to_str())["decoder"]["type"] == "Sequence"
