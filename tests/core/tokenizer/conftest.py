"""Tokenizers of every kind, built once."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.tokenizer_files import write_bpe_gguf, write_spm_gguf

from tokenspeed.tokenizer import Tokenizer, load_tokenizer


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(cache))


@pytest.fixture
def bpe(own_cache: None, cache: Path) -> Tokenizer:
    path = cache / "bpe.gguf"
    return load_tokenizer(path if path.is_file() else write_bpe_gguf(path, "qwen2"))


@pytest.fixture
def spm(own_cache: None, cache: Path) -> Tokenizer:
    path = cache / "spm.gguf"
    return load_tokenizer(path if path.is_file() else write_spm_gguf(path))
