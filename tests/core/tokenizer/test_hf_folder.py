"""A folder's tokenizer files are honoured as transformers honours them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tests.support.texts import random_texts, trained_bpe
from tokenizers import processors

from tokenspeed.errors import CheckpointError, ConfigError, RequestError
from tokenspeed.tokenizer import ChatTemplate, load_tokenizer


def write_folder(folder: Path, *, has_bos: bool = False, **files: Any) -> Path:
    """Write the trained tokenizer and the given JSON files (`name=content`)."""
    folder.mkdir(exist_ok=True)
    backend = tokenizers.Tokenizer.from_str(trained_bpe().to_str())
    if has_bos:
        backend.post_processor = processors.TemplateProcessing(
            single="<|im_start|>:0 $A:0", special_tokens=[("<|im_start|>", 1)]
        )
    backend.save(str(folder / "tokenizer.json"))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return folder


CONFIG = {
    "tokenizer_class": "PreTrainedTokenizerFast",
    "bos_token": {"__type": "AddedToken", "content": "<|im_start|>", "special": True},
    "eos_token": "<|im_end|>",
    "add_bos_token": True,
    "added_tokens_decoder": {
        "2": {"content": "<|im_end|>", "special": True, "normalized": False},
        "1500": {"content": "<tool>", "special": False, "normalized": False},
        "1501": {"content": "<|pad|>", "special": True, "normalized": False},
    },
}


@pytest.mark.parametrize("has_bos", [True, False])
def test_added_tokens_and_bos_equal_transformers(tmp_path: Path, has_bos: bool) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = write_folder(tmp_path / "m", has_bos=has_bos, tokenizer_config=CONFIG)
    ours = load_tokenizer(folder)
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    for text in random_texts(9, 1000, ("<tool>", "<|pad|>", "<|im_end|>", "<|im_start|>")):
        ids = ours.encode(text)
        assert ids == theirs.encode(text), ascii(text)
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), ascii(text)
    assert ours.bos_token_id == theirs.bos_token_id == 1
    assert ours.affixes == ([1] if has_bos else [], [])
    assert ours.vocab_size == len(theirs)
    assert 1501 in ours.special_token_ids
    assert 1500 not in ours.special_token_ids


def test_eos_ids_come_from_all_files_without_repetition(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path / "m",
        tokenizer_config={"eos_token": "<|im_end|>"},
        generation_config={"eos_token_id": [0, 2]},
        config={"eos_token_id": 5},
    )
    assert load_tokenizer(folder).eos_token_ids == (0, 2, 5)
    assert load_tokenizer(write_folder(tmp_path / "bare")).eos_token_ids == ()


def test_the_template_file_wins_over_the_config(tmp_path: Path) -> None:
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    folder = write_folder(tmp_path / "m", tokenizer_config={**CONFIG, "chat_template": named})
    assert load_tokenizer(folder).chat_template == "D"
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ messages[0].content }}")
    template = ChatTemplate.of(load_tokenizer(folder))
    assert template is not None
    assert template.render([{"role": "user", "content": "x"}]) == "<|im_start|>x"
    assert ChatTemplate.of(load_tokenizer(write_folder(tmp_path / "bare"))) is None


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.json is missing"):
        load_tokenizer(tmp_path)
    with pytest.raises(ConfigError, match="neither a folder nor"):
        load_tokenizer(tmp_path / "none")
    folder = write_folder(tmp_path / "m")
    (folder / "tokenizer_config.json").write_text("[1]")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: it holds a JSON list"):
        load_tokenizer(folder)
    (folder / "tokenizer_config.json").unlink()
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        load_tokenizer(folder)


def test_a_stored_truncation_is_not_applied(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m")
    data = json.loads((folder / "tokenizer.json").read_text())
    data["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    (folder / "tokenizer.json").write_text(json.dumps(data))
    assert len(load_tokenizer(folder).encode("one two three four five six")) > 2


def test_a_lone_surrogate_is_a_request_error(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write_folder(tmp_path / "m"))
    with pytest.raises(RequestError, match="lone surrogate"):
        tokenizer.encode("a\ud800b")


def test_importing_the_tokenizer_loads_neither_torch_nor_transformers() -> None:
    code = (
        "import sys, tokenspeed.tokenizer.tokenizer, tokenspeed.tokenizer.chat, "
        "tokenspeed.tokenizer.incremental, tokenspeed.tokenizer.detokenizer;"
        "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
