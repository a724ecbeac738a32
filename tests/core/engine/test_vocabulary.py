"""A tokenizer that does not fit the model is refused before anything heavy is loaded."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from tests.support.scripted import BYTE_TOKENS, VOCAB_SIZE, byte_tokenizer, write_scripted_model
from tokenizers import AddedToken

from tokenspeed.engine.vocabulary import check_vocabulary
from tokenspeed.errors import CheckpointError
from tokenspeed.log import LOGGER
from tokenspeed.tokenizer import load_tokenizer


def check(folder: Path, vocab_size: int, **fields: Any) -> tuple[int, ...]:
    return check_vocabulary(load_tokenizer(write_scripted_model(folder, **fields)), vocab_size)


def test_the_ids_that_end_an_answer_come_back(tmp_path: Path) -> None:
    assert check(tmp_path / "m", VOCAB_SIZE) == (VOCAB_SIZE - 1,)


@pytest.mark.parametrize(
    ("vocab_size", "eos", "said"),
    [
        (100, 5, r"eos_token_id has id 258"),
        (VOCAB_SIZE, 5000, "eos_token_id has id 5000"),
    ],
)
def test_ids_beyond_the_vocabulary_are_refused(
    tmp_path: Path, vocab_size: int, eos: int, said: str
) -> None:
    with pytest.raises(CheckpointError, match=rf"{said}.*vocab_size is {vocab_size}"):
        check(tmp_path / "m", vocab_size, eos_token_id=eos)


def test_plain_text_ids_beyond_the_vocabulary_are_refused(tmp_path: Path) -> None:
    folder = write_scripted_model(tmp_path / "m", eos_token_id=5)
    (folder / "tokenizer_config.json").unlink()
    with pytest.raises(CheckpointError, match="it makes id 100 and"):
        check_vocabulary(load_tokenizer(folder), 100)


def test_a_token_of_the_template_beyond_the_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = write_scripted_model(tmp_path / "m", eos_token_id=5)
    config = (folder / "tokenizer_config.json").read_text()
    (folder / "tokenizer_config.json").write_text(config.replace('"eos_token"', '"other"'))
    with pytest.raises(CheckpointError, match=r"the chat template needs '<\|im_start\|>'"):
        check_vocabulary(load_tokenizer(folder), len(BYTE_TOKENS) + 1)


def test_an_added_token_that_nothing_needs_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(LOGGER, "propagate", True)
    tokenizer = byte_tokenizer()
    tokenizer.add_special_tokens([AddedToken("[PAD]", special=True)])
    with caplog.at_level(logging.WARNING):
        check(tmp_path / "m", VOCAB_SIZE, tokenizer=tokenizer)
    assert "[PAD]" in caplog.text
