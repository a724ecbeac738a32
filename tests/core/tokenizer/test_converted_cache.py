"""The cache of converted tokenizers repairs itself, or does without."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import pytest
from tests.support.tokenizer_files import write_bpe_gguf

from tokenspeed.errors import CheckpointError
from tokenspeed.log import LOGGER
from tokenspeed.tokenizer import converted_cache, load_tokenizer

TEXT = "<|im_start|>caf\u00e9 12345"


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(LOGGER, "propagate", True)
    return write_bpe_gguf(tmp_path / "m.gguf", "qwen2")


def kept_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "cache" / "tokenizers").iterdir())


@pytest.mark.parametrize("keep", [0, 1, 65, 70, 500, -1])
def test_a_truncated_file_is_made_again(
    model: Path, tmp_path: Path, keep: int, caplog: pytest.LogCaptureFixture
) -> None:
    ids = load_tokenizer(model).encode(TEXT)
    (file,) = kept_files(tmp_path)
    whole = file.read_bytes()
    file.write_bytes(whole[:keep])
    with caplog.at_level(logging.WARNING):
        assert load_tokenizer(model).encode(TEXT) == ids
    assert [record.message for record in caplog.records if "made again" in record.message]
    assert file.read_bytes() == whole
    assert kept_files(tmp_path) == [file]


def test_one_flipped_bit_is_noticed(model: Path, tmp_path: Path) -> None:
    ids = load_tokenizer(model).encode(TEXT)
    (file,) = kept_files(tmp_path)
    whole = file.read_bytes()
    damaged = bytearray(whole)
    damaged[len(damaged) // 2] ^= 1
    file.write_bytes(damaged)
    assert load_tokenizer(model).encode(TEXT) == ids
    assert file.read_bytes() == whole


def test_a_folder_in_the_files_place_is_replaced(model: Path, tmp_path: Path) -> None:
    load_tokenizer(model)
    (file,) = kept_files(tmp_path)
    file.unlink()
    (file / "sub").mkdir(parents=True)
    load_tokenizer(model)
    assert file.is_file()


@pytest.mark.parametrize("kind", ["a file", "too long"])
def test_an_unusable_cache_folder_costs_one_warning(
    model: Path,
    tmp_path: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    folder = tmp_path / ("x" * 300 if kind == "too long" else "file")
    if kind == "a file":
        folder.touch()
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(folder))
    with caplog.at_level(logging.WARNING):
        assert load_tokenizer(model).encode(TEXT)
    assert len(caplog.records) == 1


def test_a_failed_write_leaves_nothing_behind(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(source: str, target: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(converted_cache.os, "replace", full)
    assert load_tokenizer(model).encode(TEXT)
    assert kept_files(tmp_path) == []


@pytest.mark.parametrize("index", [100_000, 0xFFFFFFFE])
def test_a_gguf_end_token_outside_the_vocabulary_is_refused(tmp_path: Path, index: int) -> None:
    extra = {"tokenizer.ggml.eos_token_id": ("uint32", index)}
    path = write_bpe_gguf(tmp_path / "m.gguf", "qwen2", extra)
    with pytest.raises(CheckpointError, match=f"eos_token_id is {index}; a token id from 0 to"):
        load_tokenizer(path)


def test_a_gguf_end_token_of_minus_one_is_none(tmp_path: Path) -> None:
    extra = {"tokenizer.ggml.eos_token_id": ("uint32", 0xFFFFFFFF)}
    assert load_tokenizer(write_bpe_gguf(tmp_path / "m.gguf", "qwen2", extra)).eos_token_ids == (0,)
