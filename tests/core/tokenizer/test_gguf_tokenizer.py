"""GGUF tokenizers give the ids that transformers gives for the same file."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.texts import SPECIALS, random_texts
from tests.support.tokenizer_files import (
    CONTROL,
    NORMAL,
    write_bpe_gguf,
    write_gguf,
    write_spm_gguf,
)

from tokenspeed.checkpoint.default_model import FILE_NAME
from tokenspeed.errors import CheckpointError, ConfigError
from tokenspeed.tokenizer import Tokenizer, load_tokenizer

COUNT = 10_000
USER_CACHE = Path(os.environ.get("TOKENSPEED_CACHE_DIR") or Path.home() / ".cache" / "tokenspeed")
SMOLLM2 = USER_CACHE / "models" / FILE_NAME
SMOLLM2_IDS = Path(__file__).parent / "smollm2_ids.json"


def assert_same_ids(ours: Tokenizer, theirs: Any, texts: list[str]) -> None:
    for start in range(0, len(texts), 1000):
        batch = texts[start : start + 1000]
        own = [ours.encode(text, add_special_tokens=False) for text in batch]
        expected = [
            encoding.ids for encoding in theirs.encode_batch_fast(batch, add_special_tokens=False)
        ]
        for text, left, right in zip(batch, own, expected, strict=True):
            assert left == right, ascii(text)


def transformers_backend(path: Path) -> Any:
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer

    architecture, tokenizer, _ = get_gguf_tokenizer(str(path))
    return convert_gguf_tokenizer(architecture, tokenizer)[0]


@pytest.mark.parametrize("pre", ["default", "llama-bpe", "qwen2", "smollm"])
def test_byte_level_ids_equal_transformers(tmp_path: Path, pre: str) -> None:
    path = write_bpe_gguf(tmp_path / "m.gguf", pre)
    specials = (*SPECIALS, "<think>", "</think>")
    assert_same_ids(
        load_tokenizer(path), transformers_backend(path), random_texts(1, COUNT, specials)
    )


def test_spm_ids_equal_transformers(tmp_path: Path) -> None:
    path = write_spm_gguf(tmp_path / "m.gguf")
    texts = random_texts(2, COUNT, ("<s>", "</s>", "<unk>"))
    # transformers adds the named <unk> through the class, not through the converter.
    theirs = transformers_backend(path)
    theirs.add_special_tokens(["<unk>"])
    assert_same_ids(load_tokenizer(path), theirs, texts)


def test_spm_honours_add_space_prefix(tmp_path: Path) -> None:
    off = {"tokenizer.ggml.add_space_prefix": ("bool", False)}
    without = load_tokenizer(write_spm_gguf(tmp_path / "a.gguf", off))
    with_prefix = load_tokenizer(write_spm_gguf(tmp_path / "b.gguf"))
    assert without.encode("fox") == with_prefix.encode("<s>fox")[1:]
    for tokenizer in (without, with_prefix):
        assert tokenizer.decode(tokenizer.encode("fox  jumps")) == "fox  jumps"


def test_bos_and_eos_follow_the_file(tmp_path: Path) -> None:
    spm = load_tokenizer(write_spm_gguf(tmp_path / "a.gguf"))
    assert (spm.bos_token_id, spm.eos_token_ids, spm.affixes) == (1, (2,), ([1], []))
    bpe = load_tokenizer(write_bpe_gguf(tmp_path / "b.gguf", "qwen2"))
    assert (bpe.bos_token_id, bpe.eos_token_ids, bpe.affixes) == (1, (2, 0), ([], []))
    both = {
        "tokenizer.ggml.add_bos_token": ("bool", True),
        "tokenizer.ggml.add_eos_token": ("bool", True),
    }
    wrapped = load_tokenizer(write_bpe_gguf(tmp_path / "c.gguf", "qwen2", both))
    assert wrapped.encode("") == [1, 2]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        (
            {"tokenizer.ggml.pre": ("string", "tekken")},
            '"tekken"; supported are default, llama-bpe',
        ),
        ({"tokenizer.ggml.model": ("string", "t5")}, '"t5"; supported are gpt2'),
    ],
)
def test_other_names_are_refused_by_name(
    tmp_path: Path, extra: dict[str, tuple[str, Any]], message: str
) -> None:
    path = write_bpe_gguf(tmp_path / "m.gguf", None, extra)
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(path)


def test_a_file_without_vocabulary_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", add={"tokenizer.ggml.model": ("string", "gpt2")})
    with pytest.raises(CheckpointError, match="tokens is missing"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    "extra",
    [
        {"tokenizer.ggml.merges": ("array", ["nowhere found"])},
        {"tokenizer.ggml.tokens": ("array", [1, 2, 3])},
        {"tokenizer.ggml.bos_token_id": ("string", "x")},
    ],
)
def test_damaged_tokenizer_metadata_is_a_checkpoint_error(
    tmp_path: Path, extra: dict[str, tuple[str, Any]]
) -> None:
    path = write_bpe_gguf(tmp_path / "m.gguf", "qwen2", extra)
    with pytest.raises(CheckpointError, match=r"m\.gguf"):
        load_tokenizer(path)


def test_a_second_load_reads_the_cache_and_other_content_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENSPEED_CACHE_DIR", str(tmp_path / "cache"))
    path = write_bpe_gguf(tmp_path / "m.gguf", "qwen2")
    first = load_tokenizer(path)
    monkeypatch.setattr("tokenspeed.tokenizer.gguf_tokenizer.build_backend", None)
    second = load_tokenizer(path)
    text = "<|im_start|>caf\u00e9 12345 \u4f60<think>"
    assert second.encode(text) == first.encode(text)
    assert second.eos_token_ids == first.eos_token_ids
    write_bpe_gguf(path, "llama-bpe")
    with pytest.raises(CheckpointError, match="not callable"):
        load_tokenizer(path)


def test_control_tokens_outside_the_byte_alphabet_keep_their_id(tmp_path: Path) -> None:
    add: dict[str, tuple[str, Any]] = {
        "tokenizer.ggml.model": ("string", "gpt2"),
        "tokenizer.ggml.tokens": ("array", ["a", "b", "<\uff5cend\uff5c>", "aa"]),
        "tokenizer.ggml.token_type": ("array", [NORMAL, NORMAL, CONTROL, NORMAL]),
        "tokenizer.ggml.merges": ("array", ["a a"]),
    }
    tokenizer = load_tokenizer(write_gguf(tmp_path / "m.gguf", add=add))
    assert tokenizer.encode("ab<\uff5cend\uff5c>a") == [0, 1, 2, 0]
    assert tokenizer.special_token_ids == {2}
    assert tokenizer.vocab_size == 4


def ids_digest(tokenizer: Any, texts: list[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(json.dumps(tokenizer.encode(text)).encode())
    return digest.hexdigest()


@pytest.mark.skipif(not SMOLLM2.is_file(), reason="needs the default model: run `make model`")
def test_smollm2_ids_equal_the_recorded_ids_of_transformers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    recorded = json.loads(SMOLLM2_IDS.read_text())
    tokenizer = load_tokenizer(SMOLLM2)
    for text, ids in recorded["examples"]:
        assert tokenizer.encode(text) == ids, ascii(text)
    texts = random_texts(recorded["seed"], recorded["count"])
    assert ids_digest(tokenizer, texts) == recorded["sha256"]


@pytest.mark.slow
@pytest.mark.skipif(not SMOLLM2.is_file(), reason="needs the default model: run `make model`")
def test_smollm2_ids_equal_transformers_live(tmp_path: Path) -> None:
    out = tmp_path / "ids.json"
    script = Path(__file__).parents[2] / "support" / "record_smollm2_ids.py"
    command = [sys.executable, "-W", "ignore", str(script), str(SMOLLM2), str(out)]
    subprocess.run(command, check=True, timeout=280, cwd=Path(__file__).parents[3])
    assert json.loads(out.read_text()) == json.loads(SMOLLM2_IDS.read_text())
