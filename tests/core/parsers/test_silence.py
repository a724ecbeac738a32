"""Arguments stream: while they are made, no more than eight tokens pass without a delta."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import tokenizers
from tests.support.parser_answers import ARGUMENTS, TOOLS, WRITERS, answers
from tokenizers import decoders, models, pre_tokenizers, trainers

from tokenspeed.contracts.parser import AnswerStart
from tokenspeed.parsers.formats import FORMATS
from tokenspeed.parsers.glm import Glm
from tokenspeed.plugins.targets import resolve

if TYPE_CHECKING:
    from tokenspeed.contracts.parser import Parser

MOST_SILENT_TOKENS = 8
LONG = {
    "code": "".join(f"def f{n}(x):\n    return [x, 'y', \"z\"]\n\n" for n in range(20)),
    "opts": {f"key {n}": {"items": [n, "text", None, True]} for n in range(20)},
    "path": "/a/very/long/path" * 10,
}


@pytest.fixture(scope="module")
def tokenizer() -> tokenizers.Tokenizer:
    """A byte-level vocabulary trained on calls: marks are a few tokens each.

    Only GLM's are one token, as in its own vocabulary.
    """
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1500,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(
        [answer.text for name in WRITERS for answer in answers(name, 30)], trainer
    )
    backend.add_tokens(list(Glm().markers))
    return backend


def pieces_of(tokenizer: tokenizers.Tokenizer, text: str) -> list[str]:
    """Cut a text where its tokens end."""
    encoded = tokenizer.encode(text)
    ends = [end for _, end in encoded.offsets]
    starts = [0, *ends[:-1]]
    return [text[start:end] for start, end in zip(starts, ends, strict=True)]


def longest_silence(parser: Parser, pieces: list[str]) -> int:
    """Return the most tokens between two deltas of one call."""
    answer = parser.start(AnswerStart(tools=TOOLS))
    last: dict[int, int] = {}
    longest = 0
    for at, piece in enumerate(pieces):
        for call in answer.feed(piece).tool_calls:
            longest = max(longest, at - last.get(call.index, at))
            last[call.index] = at
    assert last
    return longest


@pytest.mark.parametrize("name", WRITERS)
def test_arguments_are_told_while_they_are_made(tokenizer: tokenizers.Tokenizer, name: str) -> None:
    parser: Parser = resolve(FORMATS[name.split()[0]].path)()
    for arguments in (LONG, *ARGUMENTS):
        if any(mark in str(arguments) for mark in WRITERS[name].cannot):
            continue
        if WRITERS[name].cannot and isinstance(arguments.get("free"), dict):
            continue  # a value of no known type waits while it may be JSON or a string
        text = WRITERS[name].calls([("run", arguments)])
        pieces = pieces_of(tokenizer, text)
        assert "".join(pieces) == text
        assert longest_silence(parser, pieces) <= MOST_SILENT_TOKENS, arguments
