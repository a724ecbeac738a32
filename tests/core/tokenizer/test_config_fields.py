"""Whatever the JSON files of a tokenizer hold, the outcome names file, field and value."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.support.scripted import write_scripted_model

from tokenspeed.errors import CheckpointError
from tokenspeed.tokenizer import load_tokenizer

DEEP = "[" * 100_000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_scripted_model(tmp_path / "m")


def refused(folder: Path, file: str, *words: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        load_tokenizer(folder)
    assert all(word in str(caught.value) for word in (file, *words)), str(caught.value)


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("added_tokens_decoder", [], "[]"),
        ("added_tokens_decoder", {"x": {"content": "a"}}, "'x'"),
        ("added_tokens_decoder", {"-1": {"content": "a"}}, "'-1'"),
        ("added_tokens_decoder", {"9" * 5000: {"content": "a"}}, "999"),
        ("added_tokens_decoder", {"5": {}}, "{}"),
        ("added_tokens_decoder", {"5": 5}, "5"),
        ("added_tokens_decoder", {"5": {"content": 5}}, "5"),
        ("added_tokens_decoder", {"5": {"content": "\ud800"}}, "ud800"),
        ("chat_template", [5], "[5]"),
        ("chat_template", [{"name": "default", "template": 5}], "5"),
        ("chat_template", {"a": 1}, "{'a': 1}"),
        ("bos_token", 5, "5"),
        ("eos_token", {"content": []}, "[]"),
    ],
)
def test_fields_of_tokenizer_config_are_refused_by_name(
    folder: Path, field: str, value: Any, shown: str
) -> None:
    (folder / "tokenizer_config.json").write_text(json.dumps({field: value}))
    refused(folder, "tokenizer_config.json", field, shown)


@pytest.mark.parametrize("file", ["generation_config.json", "config.json"])
@pytest.mark.parametrize(
    "value", [["</s>"], [None], "</s>", {"a": 1}, -1, 2**31, 2**40, True, 1.5, [[1]]]
)
def test_eos_ids_that_are_no_token_ids_are_refused(folder: Path, file: str, value: Any) -> None:
    (folder / file).write_text(json.dumps({"eos_token_id": value}))
    refused(folder, file, "eos_token_id")


@pytest.mark.parametrize(
    "file", ["tokenizer_config.json", "generation_config.json", "config.json", "tokenizer.json"]
)
@pytest.mark.parametrize("content", [DEEP.encode(), b"\xff\xfe", b"[1]", b"", b"1" * 5000])
def test_files_that_hold_no_object_are_refused(folder: Path, file: str, content: bytes) -> None:
    (folder / file).write_bytes(content)
    refused(folder, file)


def test_a_template_file_that_is_not_utf8_is_refused(folder: Path) -> None:
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    refused(folder, "chat_template.jinja", "not UTF-8")


def test_a_folder_in_place_of_a_file_is_refused(folder: Path) -> None:
    (folder / "generation_config.json").mkdir()
    refused(folder, "generation_config.json")
